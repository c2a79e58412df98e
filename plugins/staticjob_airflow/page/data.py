"""A snapshot of a job as the document of its page. Nothing is read or measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from staticjob.merging.audit import item_statuses
from staticjob.records.commit import Commit, Progress
from staticjob.records.plan import Chunk, Plan
from staticjob.records.status import Status
from staticjob.status import JobStatus, alive
from staticjob_airflow.page.document import (
    ChunkRow,
    ChunkState,
    ErrorRow,
    JobInfo,
    JobPage,
    Memory,
    Money,
    Speed,
    Totals,
)
from staticjob_airflow.page.pace import computed_useful, covered_slots, pace, stretch_of
from staticjob_airflow.page.rungs import count_states, curve_rows, peak, rung_rows

# The longest rows come first and are the slowest: only the last minutes tell of now.
PACE_SECONDS = 300.0


def job_page(status: JobStatus) -> JobPage:
    """Everything the page shows of a job."""
    plan = status.plan
    if plan is None:
        return JobPage(info=_info(status), trouble=tuple(status.trouble()))
    standing: list[Commit | Progress] = [*status.commits, *status.progress]
    records = {record.chunk: record for record in standing}
    map_indexes = {chunk: i for i, pack in enumerate(plan.packs) for chunk in pack}
    chunks = tuple(_chunk(c, records.get(c.id), map_indexes.get(c.id)) for c in plan.chunks)
    answered = item_statuses(plan, status.commits)
    return JobPage(
        info=_info(status),
        totals=_totals(status, plan, chunks, records),
        speed=_speed(status, plan, records),
        memory=Memory(
            available=plan.memory.available,
            predicted=plan.memory.peak,
            measured=peak(status.commits),
        ),
        money=_money(status, plan, standing),
        rungs=rung_rows(plan, chunks, records),
        chunks=chunks,
        curves=curve_rows(status.commits),
        statuses={str(s): answered[s] for s in Status if answered[s]},
        rows_pending=plan.items - answered.total(),
        errors=tuple(
            ErrorRow(file=e.file, row=e.at, status=str(e.status), reason=e.reason)
            for e in status.first_errors()
        ),
        trouble=tuple(status.trouble()),
    )


def _info(status: JobStatus) -> JobInfo:
    config = status.prepared.config
    measured = next(iter(status.commits), None)
    planned = status.plan.memory if status.plan else None
    source = measured or planned
    return JobInfo(
        name=config.name,
        task=config.task,
        state=status.state,
        model=status.prepared.model.source,
        input=config.input.uri,
        output=config.output.uri,
        work=status.work.uri,
        fingerprint=status.prepared.fingerprint,
        device=source.device if source else None,
        dtype=source.dtype if source else None,
        reported=status.report is not None,
    )


def _state(record: Commit | Progress | None) -> ChunkState:
    """A chunk without a heartbeat waits: its process is gone, and another try will take it up."""
    if record is None:
        return "waiting"
    if isinstance(record, Commit):
        return "done"
    if record.state in ("failed", "stopped"):
        return record.state
    return "running" if alive(record) else "waiting"


def _chunk(chunk: Chunk, record: Commit | Progress | None, map_index: int | None) -> ChunkRow:
    done = 0
    if record is not None:
        done = record.batches if isinstance(record, Commit) else record.batches_done
    return ChunkRow(
        id=chunk.id,
        length=chunk.length,
        batch=chunk.batch,
        state=_state(record),
        rows=chunk.rows,
        batches=chunk.batches,
        batches_done=done,
        kept_batches=record.kept_batches if record else 0,
        seconds=record.seconds if record else None,
        worker=record.worker if record else "",
        reason=record.reason if isinstance(record, Progress) else "",
        texts=_texts(record),
        map_index=map_index,
    )


def _texts(record: Commit | Progress | None) -> str:
    if isinstance(record, Progress) and record.decoding_rows and _state(record) == "running":
        return f"{record.active_rows:,} of {record.decoding_rows:,} rows not ended"
    texts = record.generation if isinstance(record, Commit) else None
    return texts.decisions[-1].words if texts and texts.decisions else ""


def _totals(
    status: JobStatus, plan: Plan, chunks: tuple[ChunkRow, ...], records: Mapping[str, Commit | Progress]
) -> Totals:
    paid = status.ledger
    return Totals(
        splits_done=status.splits_done,
        splits=len(status.prepared.splits),
        states=count_states(chunks),
        chunks=len(chunks),
        reused=status.reused,
        rows_done=status.rows_done,
        rows=sum(chunk.rows for chunk in plan.chunks),
        slots_done=covered_slots(plan.chunks, records),
        slots=plan.ledger.slots,
        useful_share=paid.useful_share if paid.slots else None,
        planned_share=plan.ledger.useful_share if plan.ledger.slots else None,
    )


def _speed(status: JobStatus, plan: Plan, records: Mapping[str, Commit | Progress]) -> Speed | None:
    """Of this run only: chunks that were committed before it say nothing of it."""
    chunks = {chunk.id: chunk for chunk in plan.chunks}
    runs = [p for p in status.progress if _state(p) == "running"]
    fresh = sorted(status.commits, key=lambda c: c.finished)[status.reused :]
    tries: list[Commit | Progress] = [*fresh, *runs]
    stretches = (stretch_of(chunks[record.chunk], record) for record in tries)
    found = pace(stretches, PACE_SECONDS if runs else None)
    if found is None:
        return None
    left = plan.ledger.slots - covered_slots(plan.chunks, records)
    return Speed(
        rows_per_second=found.rows,
        tokens_per_second=found.useful,
        seconds_left=left / found.slots if runs and found.slots else None,
    )


def _money(status: JobStatus, plan: Plan, tries: Sequence[Commit | Progress]) -> Money:
    seconds = sum(r.seconds for r in tries) + sum(c.start_seconds for c in status.commits)
    price = status.prepared.config.cost.gpu_hour
    cost = None if price is None else seconds / 3600 * price
    useful = sum(map(computed_useful, tries))
    return Money(
        gpu_hour=price,
        seconds=seconds,
        cost=cost,
        per_million=cost / useful * 1e6 if cost is not None and useful else None,
        predicted_seconds=plan.forecast.seconds,
        predicted_cost=plan.forecast.cost,
        predicted_per_million=plan.forecast.cost_per_million_useful_tokens,
    )
