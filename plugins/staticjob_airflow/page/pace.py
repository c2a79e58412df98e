"""How fast a job goes, from when its chunks were computed: all workers together, gaps left out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from staticjob.records.commit import Commit, Progress
from staticjob.records.plan import Chunk


@dataclass(frozen=True)
class Stretch:
    """One try at a chunk: from start to end (seconds of any one clock) it computed this much.

    slots: of the plan, so that what is left of the plan can be told in time.
    """

    start: float
    end: float
    slots: float
    useful: float
    rows: float


@dataclass(frozen=True)
class Pace:
    """Amounts per second of wall clock in which at least one worker computed."""

    slots: float
    useful: float
    rows: float


def covered_share(chunk: Chunk, record: Commit | Progress | None) -> float:
    """How much of a chunk is done. By rows: where they grow, only the run knows its slots."""
    if record is None:
        return 0.0
    return 1.0 if isinstance(record, Commit) else record.rows_done / chunk.rows


def covered_slots(chunks: Iterable[Chunk], records: Mapping[str, Commit | Progress]) -> float:
    """Planned slots of the chunks that are done. records: by chunk."""
    return sum(chunk.ledger.slots * covered_share(chunk, records.get(chunk.id)) for chunk in chunks)


def stretch_of(chunk: Chunk, record: Commit | Progress) -> Stretch:
    """The record's last try at the chunk, without what it kept from the tries before."""
    end = record.finished if isinstance(record, Commit) else record.heartbeat
    stop = dt.datetime.fromisoformat(end).timestamp()
    share = max(0.0, covered_share(chunk, record) - record.kept_batches / chunk.batches)
    return Stretch(
        start=stop - record.seconds,
        end=stop,
        slots=chunk.ledger.slots * share,
        useful=computed_useful(record),
        rows=chunk.rows * share,
    )


def computed_useful(record: Commit | Progress) -> float:
    """Useful tokens that the record's last try computed itself."""
    batches = record.batches if isinstance(record, Commit) else record.batches_done
    useful = record.useful_tokens if isinstance(record, Commit) else record.ledger.useful
    return useful * (batches - record.kept_batches) / batches if batches else 0.0


def pace(stretches: Iterable[Stretch], window: float | None = None) -> Pace | None:
    """The speed over the last `window` seconds before the last end (None: over all); None without time."""
    spans = [s for s in stretches if s.end > s.start]
    if not spans:
        return None
    since = max(s.end for s in spans) - window if window is not None else float("-inf")
    clipped = [(max(s.start, since), s) for s in spans if s.end > since]
    seconds = _covered([(start, s.end) for start, s in clipped])
    parts = [((s.end - start) / (s.end - s.start), s) for start, s in clipped]
    return Pace(
        slots=sum(part * s.slots for part, s in parts) / seconds,
        useful=sum(part * s.useful for part, s in parts) / seconds,
        rows=sum(part * s.rows for part, s in parts) / seconds,
    )


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Length of the union of the intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
