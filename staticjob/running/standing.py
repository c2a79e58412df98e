"""How one try at a chunk stands, for people to see: written as it goes, and once more however it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from staticjob import storage
from staticjob.clock import now
from staticjob.errors import StaticJobError, Stopped
from staticjob.layout import Work
from staticjob.ledger import Ledger
from staticjob.records.commit import Progress
from staticjob.records.plan import Chunk
from staticjob.running.watch import heartbeat, worker_name

State = Literal["running", "done", "failed", "stopped"]


class Standing:
    """The chunk's progress object and what it says."""

    def __init__(self, work: Work, chunk: Chunk) -> None:
        self._uri = work.progress(chunk.id)
        self._chunk = chunk
        self._seconds = 0.0
        self._since: float | None = None
        self._state: State = "running"
        self._reason = ""
        # The heartbeat and the work both write: the last word must be the work's.
        self._lock = threading.Lock()
        self.done = self.kept = 0  # batches
        self.rows_done = 0
        self.tails = self.tails_done = 0
        self.active_rows = self.decoding_rows = 0
        self.ledger = Ledger()

    @property
    def seconds(self) -> float:
        """Time within `shown`: a chunk may wait while others run."""
        return self._seconds + (time.perf_counter() - self._since if self._since is not None else 0.0)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Write progress every few seconds while the block runs, and why it failed if it does."""
        self._since = time.perf_counter()
        with heartbeat(self.write):
            try:
                yield
            except BaseException as error:  # whatever ends the try is shown before it goes on
                self._state = "stopped" if isinstance(error, Stopped) else "failed"
                self._reason = f"{type(error).__name__}: {error}"
                # The failure itself is what must be seen, also when the store is what failed.
                with suppress(StaticJobError):
                    self.write()
                raise
        self._seconds, self._since = self.seconds, None

    def finished(self) -> None:
        """The chunk is committed."""
        self._state = "done"
        self.write()

    def write(self) -> None:
        with self._lock:
            progress = Progress(
                chunk=self._chunk.id,
                state=self._state,
                worker=worker_name(),
                batches_done=self.done,
                batches_total=self._chunk.batches,
                rows_done=self.rows_done,
                kept_batches=self.kept,
                tails=self.tails,
                tails_done=self.tails_done,
                active_rows=self.active_rows,
                decoding_rows=self.decoding_rows,
                ledger=self.ledger,
                seconds=self.seconds,
                heartbeat=now(),
                reason=self._reason,
            )
            storage.put_json(self._uri, progress)
