"""Measured speed of both ways to generate, as the policy reads it and the history keeps it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from staticjob.records.record import Record

# What vLLM is assumed to do before anything was measured, as shares of a full static step: its step with no
# row, for the weights that every step reads, and what a full batch of rows adds. On a CPU, where products
# are bound by arithmetic, 0.5 and 1.0 were measured (SmolLM2-135M, 2 cores, vLLM 0.32.0 without compiling,
# ready after 27 s); a GPU reads its weights for as long as it computes a batch, and captures graphs first.
ASSUMED_WEIGHT_SHARE = {"cpu": 0.5, "cuda": 0.5}
ASSUMED_ROWS_SHARE = {"cpu": 1.0, "cuda": 0.5}
ASSUMED_START_SECONDS = {"cpu": 30.0, "cuda": 60.0}
# Of a step's seconds for the weights, where all steps measured had the same number of rows: one, that is.
WEIGHT_SHARE = 0.5
# Slots whose steps are taken together.
SLOT_GROUP = 32
# Steps that say enough: of the static decoder, or of vLLM with every row under way.
LEAST_STEPS = 8


class StaticRates(Record):
    """One shape of the static decoder."""

    batch: int
    prefill_seconds: float = Field(description="of one rectangle")
    step_seconds: tuple[tuple[int, float], ...] = Field(
        description="cache slots attended over, seconds of a step; ascending"
    )
    lanes: int = Field(default=1, description="batches run at once")
    source: str

    def step(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds of a step over each number of slots, between and beyond the measured ones by line."""
        x, y = (np.array(column, np.float64) for column in zip(*self.step_seconds, strict=True))
        if len(x) == 1:
            return np.full(len(slots), y[0])
        slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
        beyond = np.maximum(np.asarray(slots) - x[-1], 0) * max(slope, 0.0)
        seconds: NDArray[np.float64] = np.interp(slots, x, y) + beyond
        return seconds


class StepTimes:
    """The static decoder's own steps, timed as they are run."""

    def __init__(self, batch: int, lanes: int) -> None:
        self._batch, self._lanes = batch, lanes
        self._prefill: list[float] = []
        self._steps: dict[int, list[float]] = defaultdict(list)

    def add_prefill(self, seconds: float) -> None:
        self._prefill.append(seconds)

    def add_step(self, slots: int, seconds: float) -> None:
        """A step whose rows attended over up to `slots` slots."""
        self._steps[-(-slots // SLOT_GROUP) * SLOT_GROUP].append(seconds)

    def rates(self, earlier: StaticRates | None) -> StaticRates | None:
        """Medians of what was timed, else the earlier run's rates; None where there is neither."""
        timed = [(slots, median(times)) for slots, times in sorted(self._steps.items())]
        if not self._prefill or sum(map(len, self._steps.values())) < LEAST_STEPS:
            return earlier
        return StaticRates(
            batch=self._batch,
            prefill_seconds=median(self._prefill),
            step_seconds=tuple(timed),
            lanes=self._lanes,
            source="measured",
        )


class VllmRates(Record):
    """Continuous batching: a step over n rows takes `step_seconds + n * row_seconds`."""

    start_seconds: float
    prefill_tokens_per_second: float
    step_seconds: float
    row_seconds: float
    max_rows: int = Field(default=256, description="rows it runs at once")
    source: str = "measured"

    @classmethod
    def assumed(cls, static: StaticRates, device: str, prompt: float) -> VllmRates:
        """A stand-in until the first run has measured it; `prompt` is the mean tokens of a prompt."""
        kind, step = device.partition(":")[0], static.step_seconds[0][1] / static.lanes
        return cls(
            start_seconds=ASSUMED_START_SECONDS[kind],
            prefill_tokens_per_second=static.batch * prompt * static.lanes / static.prefill_seconds,
            step_seconds=step * ASSUMED_WEIGHT_SHARE[kind],
            row_seconds=step * ASSUMED_ROWS_SHARE[kind] / static.batch,
            source="assumed from the static engine's own rates",
        )


class VllmStep(Record):
    """One engine step: rows that got a token, prompt tokens whose prefill ended, rows still without one."""

    seconds: float
    rows: int
    prefilled: int
    waiting: int


def fit_rates(steps: Sequence[VllmStep], start_seconds: float) -> VllmRates | None:
    """Least squares over the steps in which every row was under way; None where there are too few.

    A process's first steps are of one row, so the line has two ends even where all rows live to the last.
    The rest of the time, beyond what its rows explain, is prefill.
    """
    steady = [s for s in steps if not s.waiting and not s.prefilled]
    if len(steady) < LEAST_STEPS:
        return None
    rows, seconds = np.array([s.rows for s in steady], float), np.array([s.seconds for s in steady])
    # Slow outliers are another program's doing.
    kept = seconds <= np.quantile(seconds, 0.9)
    rows, seconds = rows[kept], seconds[kept]
    spread = rows.max() - rows.min()
    if spread >= 2:
        per_row, base = np.polyfit(rows, seconds, 1)
    else:
        per_row = (1 - WEIGHT_SHARE) * seconds.mean() / rows.mean()
        base = seconds.mean() - per_row * rows.mean()
    per_row, base = max(float(per_row), 1e-9), max(float(base), 1e-9)
    busy = [s for s in steps if s.waiting or s.prefilled]
    tokens = sum(s.prefilled for s in busy)
    spent = sum(max(0.0, s.seconds - per_row * s.rows) for s in busy)
    return VllmRates(
        start_seconds=start_seconds,
        prefill_tokens_per_second=tokens / spent if tokens and spent else 1e9,
        step_seconds=base,
        row_seconds=per_row,
    )
