"""The ladder rung by rung: what is done of it, what it needs, and how its rows ended where they grow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from staticjob.ledger import Ledger
from staticjob.records.commit import Commit, Progress
from staticjob.records.plan import Chunk, Plan
from staticjob.report.texts import RungCurve, texts_of
from staticjob_airflow.page.document import ChunkRow, ChunkState, CurveRow, RungRow
from staticjob_airflow.page.pace import covered_slots

# More points of a curve are closer together than a pixel.
CURVE_POINTS = 250


def count_states(chunks: Iterable[ChunkRow]) -> dict[ChunkState, int]:
    """Chunks by state; states that none is in are left out."""
    return dict(Counter(chunk.state for chunk in chunks))


def rung_rows(
    plan: Plan, chunks: tuple[ChunkRow, ...], records: Mapping[str, Commit | Progress]
) -> tuple[RungRow, ...]:
    """The ladder, longest first. chunks: all rows of the chunk table; records: by chunk."""
    states: dict[int, list[ChunkRow]] = defaultdict(list)
    for row in chunks:
        states[row.length].append(row)
    members: dict[int, list[Chunk]] = defaultdict(list)
    for chunk in plan.chunks:
        members[chunk.length].append(chunk)
    predicted = {shape.length: shape.bytes for shape in plan.memory.shapes}
    rows = []
    for rung in plan.rungs:
        own = members[rung.length]
        known = [records[chunk.id] for chunk in own if chunk.id in records]
        commits = {record.chunk: record for record in known if isinstance(record, Commit)}
        paid = sum((record.ledger for record in known), Ledger())
        done = covered_slots(own, commits)
        rows.append(
            RungRow(
                length=rung.length,
                batch=rung.batch,
                rows=rung.rows,
                slots=rung.ledger.slots,
                slots_done=done,
                slots_running=covered_slots(own, records) - done,
                states=count_states(states[rung.length]),
                useful_share=paid.useful_share if paid.slots else None,
                predicted_bytes=predicted.get(rung.length),
                measured_bytes=peak(commits.values()),
            )
        )
    return tuple(rows)


def peak(commits: Iterable[Commit]) -> int | None:
    """The largest measured peak, in bytes."""
    return max((c.peak_bytes for c in commits if c.peak_bytes), default=None)


def curve_rows(commits: Sequence[Commit]) -> tuple[CurveRow, ...]:
    """Active rows of the rungs that decoded statically, longest first."""
    texts = texts_of(commits)
    return tuple(_curve(rung) for rung in texts.rungs) if texts else ()


def _curve(rung: RungCurve) -> CurveRow:
    curve = rung.curve
    steps = len(curve.active)
    every = max(1, steps // CURVE_POINTS)
    return CurveRow(
        length=rung.length,
        batch=rung.batch,
        rows=curve.rows,
        steps=steps,
        half_step=curve.half_step,
        points=tuple((t, curve.active[t] / curve.rows) for t in range(0, steps, every)),
        handovers=tuple(curve.handovers.items()),
    )
