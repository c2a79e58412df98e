"""The active-row monitor: how many rows of a batch were still being written, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ActiveRows:
    """`active[t]` of `rows` real rows were unfinished when step t began; a step is one decode pass.

    The token that follows the prompt comes out of the prefill, so a row of n tokens is active in the
    first n - 1 steps. `slots` are the row-steps computed: finished and dummy rows count too.
    """

    rows: int
    slots: int
    active: tuple[int, ...]
    left: int = 0  # rows still unfinished after the last step, when they were handed over

    @property
    def steps(self) -> int:
        return len(self.active)

    @property
    def handover(self) -> int | None:
        """The step before which the unfinished rows left for another engine."""
        return self.steps if self.left else None

    @property
    def useful(self) -> int:
        """Decode slots spent on unfinished rows."""
        return sum(self.active)

    @property
    def area(self) -> float:
        """Useful share of the decode slots; 1.0 where nothing was decoded."""
        return self.useful / self.slots if self.slots else 1.0

    @property
    def half_step(self) -> int | None:
        """First step at which at most half of the rows were active; None when that was not reached."""
        return next((t for t, count in enumerate(self.active) if count <= self.rows / 2), None)


def survivors(lengths: Iterable[int]) -> tuple[int, ...]:
    """Rows active at each step when row b generates lengths[b] tokens: what a batch run to its end shows."""
    passes = np.sort(np.fromiter(lengths, np.int64)) - 1
    steps = np.arange(max(0, int(passes[-1])) if len(passes) else 0)
    return tuple((len(passes) - np.searchsorted(passes, steps, side="right")).tolist())


def total(curves: Iterable[ActiveRows]) -> ActiveRows:
    """Batches added up, step by step: the curve of a chunk, a rung or a job."""
    curves = list(curves)
    active = np.zeros(max((c.steps for c in curves), default=0), np.int64)
    for curve in curves:
        active[: curve.steps] += np.asarray(curve.active, np.int64)
    return ActiveRows(sum(c.rows for c in curves), sum(c.slots for c in curves), tuple(active.tolist()))
