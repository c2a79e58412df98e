"""How fast a job goes, from when its chunks were computed: all workers together, gaps left out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from staticjob.ledger import Ledger
from staticjob.records import Commit, Progress


@dataclass(frozen=True)
class Stretch:
    """One try at a chunk: from start to end (seconds of any one clock) it computed this much."""

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


def stretch_of(record: Commit | Progress) -> Stretch:
    """The record's last try, without what it kept from the tries before."""
    if isinstance(record, Commit):
        end, batches, rows = record.finished, record.batches, record.rows
    else:
        end, batches, rows = record.heartbeat, record.batches_done, record.rows_done
    stop = dt.datetime.fromisoformat(end).timestamp()
    share = computed_share(batches, record.kept_batches)
    return Stretch(
        start=stop - record.seconds,
        end=stop,
        slots=record.ledger.slots * share,
        useful=record.ledger.useful * share,
        rows=rows * share,
    )


def computed_share(batches: int, kept: int) -> float:
    """Share of a chunk's batches that its last try computed itself."""
    return (batches - kept) / batches if batches else 0.0


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


def computed_useful(records: Iterable[Commit | Progress]) -> float:
    """Useful tokens whose seconds are known: those kept from an earlier try are left out."""
    return sum(stretch_of(record).useful for record in records)


def total(records: Iterable[Commit | Progress]) -> Ledger:
    """The ledgers added up."""
    return sum((record.ledger for record in records), Ledger())
