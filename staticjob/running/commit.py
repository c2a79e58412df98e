"""A chunk's result becomes the one that counts: data first, then the marker, put if absent."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from staticjob import __version__, storage
from staticjob.clock import now
from staticjob.environment import positive
from staticjob.generating.outcome import Outcome
from staticjob.layout import Work
from staticjob.ledger import Ledger
from staticjob.records.commit import Commit
from staticjob.records.plan import Chunk
from staticjob.records.prepared import InputFile
from staticjob.records.rates import Ceilings
from staticjob.records.status import FIRST_ERRORS, RowError, Status
from staticjob.running import results
from staticjob.running.watch import worker_name

log = logging.getLogger(__name__)

# What a chunk leaves while it is under way; of no use once it is committed.
FLUSH = "flush-"
FLUSH_SECONDS = positive("STATICJOB_FLUSH_SECONDS", 30.0, zero=True)


@dataclass(frozen=True)
class EngineFacts:
    """What computed a chunk; `start_seconds` is what the chunk is charged of the start."""

    device: str
    dtype: str
    versions: dict[str, str]
    start_seconds: float
    peak_bytes: int | None
    ceilings: Ceilings | None = None


@dataclass(frozen=True)
class Measured:
    """What one try at a chunk took, and on what."""

    ledger: Ledger
    kept_batches: int
    seconds: float
    compute_seconds: float
    engine: EngineFacts
    generation: Outcome | None = None


def committed(work: Work, chunk: Chunk) -> Commit | None:
    """The chunk's commit, or None while it does not count."""
    return storage.find_json(work.commit(chunk.id), Commit)


def publish(
    work: Work, files: tuple[InputFile, ...], chunk: Chunk, rows: pa.Table, measured: Measured
) -> Commit:
    """Store all rows of a chunk, in any order, and commit them; returns the commit that counts.

    It is another's where another worker was first. What was flushed on the way is deleted.
    """
    table, engine = results.sort_rows(rows), measured.engine
    name = f"result-{uuid.uuid4().hex[:12]}.arrow"
    size, blocks = results.write_result(work.chunk(chunk.id, name), table)
    commit = Commit(
        chunk=chunk.id,
        result=name,
        size=size,
        rows=table.num_rows,
        blocks=blocks,
        statuses=dict(Counter(Status(s) for s in table["status"].to_pylist())),
        first_errors=_first_errors(files, table),
        ledger=measured.ledger,
        length=chunk.length,
        batch=chunk.batch,
        batches=chunk.batches,
        kept_batches=measured.kept_batches,
        seconds=measured.seconds,
        compute_seconds=measured.compute_seconds,
        start_seconds=engine.start_seconds,
        peak_bytes=engine.peak_bytes,
        device=engine.device,
        dtype=engine.dtype,
        ceilings=engine.ceilings,
        worker=worker_name(),
        versions={"staticjob": __version__, **engine.versions},
        generation=measured.generation,
        finished=now(),
    )
    if not storage.put_json_if_absent(work.commit(chunk.id), commit):
        log.info("chunk %s: another worker committed first; its result counts", chunk.id)
        storage.delete([work.chunk(chunk.id, name)])
        commit = storage.read_json(work.commit(chunk.id), Commit)
    objects = storage.list_objects(work.chunk(chunk.id))
    storage.delete([o.uri for o in objects if o.uri.rpartition("/")[2].startswith(FLUSH)])
    return commit


def _first_errors(files: tuple[InputFile, ...], table: pa.Table) -> tuple[RowError, ...]:
    failed = table.filter(pc.equal(table["status"], Status.ERROR.value)).slice(0, FIRST_ERRORS)
    return tuple(
        RowError(file=files[r["file"]].path, row=r["row"], status=Status.ERROR, reason=r["reason"])
        for r in failed.select(["file", "row", "reason"]).to_pylist()
    )
