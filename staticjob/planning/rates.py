"""Rates as a finished run measured them, for the next run's forecast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from staticjob.planning.forecast import assumed_rates
from staticjob.records.commit import Commit
from staticjob.records.plan import Plan
from staticjob.records.rates import Rates, ShapeRate


def measured_rates(plan: Plan, commits: Sequence[Commit], source: str) -> Rates | None:
    """Seconds per batch of every shape that ran, and what a start costs; None when nothing ran.

    Batches kept from an earlier try have no time and count for nothing. Where workers had
    different devices, the device that computed most batches is measured.
    """
    by_device: dict[tuple[str, str], list[Commit]] = defaultdict(list)
    for commit in commits:
        if commit.batches > commit.kept_batches and commit.compute_seconds > 0:
            by_device[commit.device, commit.dtype].append(commit)
    if not by_device:
        return None
    (device, dtype), ran = max(by_device.items(), key=lambda item: _batches(item[1]))
    shapes: dict[tuple[int, int], list[Commit]] = defaultdict(list)
    workers: dict[str, list[Commit]] = defaultdict(list)
    for commit in ran:
        shapes[commit.length, commit.batch].append(commit)
        workers[commit.worker].append(commit)
    rung_seconds = (plan.rates or assumed_rates(device.split(":")[0])).rung_seconds
    # A start as committed includes the warm-up of every shape of its process.
    starts = [
        sum(c.start_seconds for c in own) - rung_seconds * len({(c.length, c.batch) for c in own})
        for own in workers.values()
    ]
    return Rates(
        device=device,
        dtype=dtype,
        shapes=tuple(
            ShapeRate(length=length, batch=batch, seconds=sum(c.compute_seconds for c in own) / _batches(own))
            for (length, batch), own in sorted(shapes.items(), reverse=True)
        ),
        start_seconds=max(0.0, median(starts)),
        rung_seconds=rung_seconds,
        source=source,
        ceilings=next((c.ceilings for c in ran if c.ceilings), plan.rates.ceilings if plan.rates else None),
    )


def with_earlier(new: Rates, old: Rates | None) -> Rates:
    """`new` with the shapes of `old` whose lengths were not measured now, if device and type are the same."""
    if old is None or (old.device, old.dtype) != (new.device, new.dtype):
        return new
    measured = {shape.length for shape in new.shapes}
    kept = [shape for shape in old.shapes if shape.length not in measured]
    if not kept:
        return new
    shapes = sorted((*new.shapes, *kept), key=lambda shape: (shape.length, shape.batch), reverse=True)
    source = f"{new.source}, {len(kept)} of them in earlier runs"
    return new.model_copy(update={"shapes": tuple(shapes), "source": source})


def _batches(commits: Sequence[Commit]) -> int:
    """Batches whose time was measured."""
    return sum(commit.batches - commit.kept_batches for commit in commits)
