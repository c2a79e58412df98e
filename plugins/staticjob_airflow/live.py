"""How many rows a pack still writes, sent as metrics while it runs: what its progress objects say."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from staticjob import storage
from staticjob.errors import StaticJobError
from staticjob.layout import Work
from staticjob.records.commit import Progress
from staticjob.records.plan import Plan
from staticjob.records.prepared import Prepared
from staticjob.tasks.roles import TASKS
from staticjob_airflow import metrics
from staticjob_airflow.stores import Stores

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
THREAD = "active rows"


@contextmanager
def active_rows_sent(
    dag_id: str, work: str, pack: int, aws_conn_id: str | None, seconds: float = LOOK_SECONDS
) -> Iterator[None]:
    """Send the gauges of a pack every few seconds while the block runs, where the job writes texts."""
    watch = _Watch(dag_id, Work(work), pack, aws_conn_id)
    # Not waited for: a store that hangs must not hold the end of the task.
    threading.Thread(target=watch.run, args=(seconds,), name=THREAD, daemon=True).start()
    try:
        yield
    finally:
        watch.end()


class _Watch:
    """Looks at the progress of one pack until it is told to end."""

    def __init__(self, dag_id: str, work: Work, pack: int, aws_conn_id: str | None) -> None:
        self._dag_id, self._work, self._pack, self._aws_conn_id = dag_id, work, pack, aws_conn_id
        self._ended = threading.Event()
        self._lock = threading.Lock()  # what is sent last must be the end
        self._sent = False

    def run(self, seconds: float) -> None:
        """Look and send until `end`; at once over where no texts are written."""
        stores = Stores()
        chunks: tuple[str, ...] | None = None
        while chunks != () and not self._ended.wait(seconds):
            try:
                with stores.reading(self._aws_conn_id):
                    chunks = self._chunks() if chunks is None else chunks
                    found = [storage.find_json(self._work.progress(chunk), Progress) for chunk in chunks]
            except StaticJobError as error:  # the store's real trouble shows in the step itself
                log.debug("active rows not sent: %s", error)
                continue
            running = [progress for progress in found if progress and progress.state == "running"]
            self._send(sum(p.active_rows for p in running), sum(p.decoding_rows for p in running))

    def end(self) -> None:
        """A gauge keeps its last value for ever: leave none behind."""
        self._ended.set()
        with self._lock:
            if self._sent:
                metrics.rows_active(self._dag_id, self._pack, 0, 0)

    def _send(self, active: int, decoding: int) -> None:
        with self._lock:
            if not self._ended.is_set() and (decoding or self._sent):
                metrics.rows_active(self._dag_id, self._pack, active, decoding)
                self._sent = True

    def _chunks(self) -> tuple[str, ...]:
        """The pack's chunks; none where the task writes no texts."""
        prepared = storage.read_json(self._work.job, Prepared)
        if not TASKS[prepared.config.task].generates:
            return ()
        return storage.read_json(self._work.plan, Plan).packs[self._pack]
