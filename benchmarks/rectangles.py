"""Rows in memory, laid into the ladder's rectangles as a job's chunks are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from staticjob.engine.shape import Shape
from staticjob.ladder import Fill, choose_rungs, fill_rungs
from staticjob.memory import ALIGNMENT, BEST_BUDGETS


@dataclass(frozen=True)
class Batch:
    """One rectangle and the numbers [n] of the rows in it, n <= B."""

    rows: NDArray[np.int64]
    ids: NDArray[np.int32]  # [B, L]
    lengths: NDArray[np.int32]  # [B]
    boundaries: NDArray[np.int32]  # [B]

    @property
    def shape(self) -> Shape:
        batch, length = self.ids.shape
        return Shape(length, batch)


def ladder(lengths: NDArray[np.int64], limit: int) -> tuple[Fill, ...]:
    """Filled rungs for rows of these token counts [n], shortest first.

    Without a price for a rung: on a CPU its warm-up is nothing, and no chunk is stored here.
    """
    histogram = Counter(lengths.tolist())
    found = []
    for budget in BEST_BUDGETS["cpu"]:
        rungs = choose_rungs(
            histogram,
            budget,
            max_rungs="auto",
            rung_cost=0.0,
            max_length=limit,
            multiple=ALIGNMENT["cpu"],
        )
        found.append(fill_rungs(histogram, rungs, budget))
    return min(found, key=lambda fills: sum(fill.slots for fill in fills))


def sorted_batches(
    fills: Sequence[Fill], ids: Sequence[Sequence[int]], boundaries: Sequence[int] | None = None
) -> Iterator[Batch]:
    """The rows' rectangles, longest first."""
    lengths = np.array([len(row) for row in ids])
    order = np.argsort(lengths, kind="stable")
    groups, start = [], 0
    for fill in fills:
        rows = order[start : start + fill.rows]
        start += fill.rows
        groups += [(fill, rows[i : i + fill.batch]) for i in range(0, fill.rows, fill.batch)]
    for fill, rows in reversed(groups):
        yield lay(rows, ids, Shape(fill.length, fill.batch), boundaries)


def lay(
    rows: NDArray[np.int64],
    ids: Sequence[Sequence[int]],
    shape: Shape,
    boundaries: Sequence[int] | None = None,
) -> Batch:
    """Rows, by number, in one rectangle."""
    used = np.zeros(shape.batch, np.int32)
    used[: len(rows)] = [len(ids[row]) for row in rows]
    rectangle = np.zeros((shape.batch, shape.length), np.int32)
    rectangle[np.arange(shape.length) < used[:, None]] = np.concatenate([ids[row] for row in rows])
    bounds = np.full(shape.batch, -1, np.int32)
    if boundaries is not None:
        bounds[: len(rows)] = [boundaries[row] for row in rows]
    return Batch(rows, rectangle, used, bounds)
