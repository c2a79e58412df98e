"""Run one chunk: resume at its first unflushed batch, flush as it goes, commit once.

Objects of a chunk, all beneath `chunks/<id>/`: `flush-<first>-<stop>.arrow` holds the results
of batches first..stop-1 while the chunk is under way, `result-<token>.arrow` all its rows
sorted by (file, row), `commit.json` makes it count. The marker is put if absent after the
result, so of two workers on one chunk exactly one is believed.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from staticjob import storage
from staticjob.layout import Work
from staticjob.ledger import batch_ledger
from staticjob.machine.host_memory import peak_resident
from staticjob.records.commit import Commit
from staticjob.records.plan import Chunk
from staticjob.records.prepared import InputFile
from staticjob.records.rates import Ceilings
from staticjob.running import results
from staticjob.running.assemble import HostBatch, batches, prefetched
from staticjob.running.commit import FLUSH, FLUSH_SECONDS, EngineFacts, Measured, publish
from staticjob.running.finite import make_finite
from staticjob.running.progress import Reporter
from staticjob.running.standing import Standing
from staticjob.running.watch import StopFlag, Watchdog

if TYPE_CHECKING:
    from staticjob.engine.heads import HeadResult
    from staticjob.engine.static_engine import StaticEngine

log = logging.getLogger(__name__)

# Rows held before a flush even when 30 s have not passed: a fast device fills a whole chunk sooner.
FLUSH_ROWS = 65_536
FLUSH_NAME = re.compile(rf"{FLUSH}(\d+)-(\d+)\.arrow$")


@dataclass(frozen=True)
class Kept:
    """What an earlier try left: results of the first `batches` batches."""

    batches: int
    tables: tuple[pa.Table, ...]


def read_kept(work: Work, chunk: Chunk) -> Kept:
    """Read the flushed results that cover the chunk's batches from 0 without a gap.

    Two tries may have flushed at different places; whichever object reaches furthest from
    where coverage ends is taken, and rows an overlap would double are dropped.
    """
    names = {}
    for obj in storage.list_objects(work.chunk(chunk.id)):
        match = FLUSH_NAME.search(obj.uri)
        if match:
            names[int(match[1]), int(match[2])] = obj.uri
    covered = 0
    tables: list[pa.Table] = []
    while True:
        usable = [span for span in names if span[0] <= covered < span[1]]
        if not usable:
            return Kept(covered, tuple(tables))
        first, stop = max(usable, key=lambda span: span[1])
        table = _read_flush(names[first, stop], min(stop * chunk.batch, chunk.rows) - first * chunk.batch)
        if table is None:
            del names[first, stop]
            continue
        tables.append(table.slice((covered - first) * chunk.batch))
        covered = stop


def _read_flush(uri: str, rows: int) -> pa.Table | None:
    """The `rows` rows of a flush; None when it is damaged or gone, for then it is computed again."""
    data = storage.find(uri)
    if data is None:  # another worker has committed meanwhile
        return None
    try:
        table = results.from_ipc(data)
    except (pa.ArrowInvalid, OSError) as error:
        log.warning("%s: damaged (%s); its batches are computed again", uri, error)
        return None
    if table.num_rows != rows:
        log.warning("%s: %d rows where %d belong; computed again", uri, table.num_rows, rows)
        return None
    return table


@dataclass(frozen=True)
class Worker:
    """What all chunks of one process share."""

    engine: StaticEngine
    stop: StopFlag
    reporter: Reporter
    ceilings: Ceilings | None = None


class ChunkRun:
    """One try at one chunk on a loaded engine."""

    def __init__(
        self,
        work: Work,
        files: tuple[InputFile, ...],
        chunk: Chunk,
        worker: Worker,
    ) -> None:
        self._work = work
        self._files = files
        self._chunk = chunk
        self._engine = worker.engine
        self._stop = worker.stop
        self._reporter = worker.reporter
        self._ceilings = worker.ceilings
        self._standing = Standing(work, chunk)
        self._tables: list[pa.Table] = []
        self._pending: list[pa.Table] = []
        self._pending_first = 0
        self._compute_seconds = 0.0

    def run(self, start_seconds: float) -> Commit:
        """Compute what is missing and commit; returns the commit that counts (ours or another's).

        `start_seconds` is the engine start this chunk is charged with. Raises Stopped after
        flushing when a stop was asked for; any other failure leaves the flushed batches too.
        """
        with self._standing.shown():
            return self._run(start_seconds)

    def _run(self, start_seconds: float) -> Commit:
        chunk, standing = self._chunk, self._standing
        kept = read_kept(self._work, chunk)
        if kept.batches:
            log.info(
                "chunk %s: %d of %d batches kept from an earlier try", chunk.id, kept.batches, chunk.batches
            )
        for table in kept.tables:
            self._tables.append(table)
            standing.rows_done += table.num_rows
            lengths = table["n_tokens"].to_numpy().astype(np.int32)
            for begin in range(0, len(lengths), chunk.batch):
                standing.ledger += batch_ledger(
                    lengths[begin : begin + chunk.batch], chunk.length, chunk.batch
                )
        standing.done = standing.kept = self._pending_first = kept.batches
        self._reporter.kept(standing.ledger, standing.rows_done)
        standing.write()
        last_flush = time.monotonic()
        ahead = prefetched(batches(self._work, chunk, first=kept.batches))
        with Watchdog() as watchdog, closing(self._engine.stream(ahead)) as computed:
            for batch, result, seconds in computed:
                self._take(batch, make_finite(self._engine, result, batch))
                self._compute_seconds += seconds
                watchdog.alive()
                due = time.monotonic() - last_flush >= FLUSH_SECONDS
                held = sum(t.num_rows for t in self._pending)
                if self._standing.done < chunk.batches and (due or held >= FLUSH_ROWS or self._stop.wanted()):
                    self._flush()
                    last_flush = time.monotonic()
                    self._stop.check()
            watchdog.alive()
            return self._commit(kept.batches, start_seconds)

    def _take(self, batch: HostBatch, result: HeadResult) -> None:
        """Turn one engine result into rows."""
        n = len(batch.rows)
        columns = {name: values[:n] for name, values in result.columns.items()}
        bad = np.flatnonzero(~result.finite[:n])
        reasons = {int(i): "result is not finite, in float32 neither" for i in bad}
        table = results.batch_table(batch.rows, self._chunk.length, "static", columns, reasons)
        self._tables.append(table)
        self._pending.append(table)
        paid = batch_ledger(batch.lengths[:n], self._chunk.length, self._chunk.batch)
        self._standing.ledger += paid
        self._standing.done += 1
        self._standing.rows_done += n
        self._reporter.batch(paid, n)

    def _flush(self) -> None:
        """Store the batches since the last flush; the name says which."""
        name = f"{FLUSH}{self._pending_first:06d}-{self._standing.done:06d}.arrow"
        data = results.to_ipc(pa.concat_tables(self._pending))
        storage.put(self._work.chunk(self._chunk.id, name), data)
        self._pending = []
        self._pending_first = self._standing.done
        self._standing.write()

    def _commit(self, kept_batches: int, start_seconds: float) -> Commit:
        measured = Measured(
            ledger=self._standing.ledger,
            kept_batches=kept_batches,
            seconds=self._standing.seconds,
            compute_seconds=self._compute_seconds,
            engine=EngineFacts(
                device=self._engine.device,
                dtype=self._engine.dtype,
                versions=self._engine.versions,
                start_seconds=start_seconds,
                peak_bytes=self._engine.peak_bytes() or peak_resident(),
                ceilings=self._ceilings,
            ),
        )
        # The schema's notes come from the head; a cast to the same types copies nothing.
        schema = results.result_schema([field.arrow() for field in self._engine.fields()])
        rows = pa.concat_tables(self._tables).cast(schema)
        commit = publish(self._work, self._files, self._chunk, rows, measured)
        self._standing.finished()
        return commit
