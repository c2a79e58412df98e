"""Measured speed: of an engine in a few shapes, for the forecast; of the bare device, for the report."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from staticjob.engine.loader import DTYPES
from staticjob.engine.shape import Shape
from staticjob.engine.static_engine import StaticEngine
from staticjob.records.rates import Ceilings, Rates, ShapeRate

REPETITIONS = 2
# Time per slot is smooth in the length, so a few shapes across the ladder stand for all.
SHAPES = 4
# The side of the square product and the bytes copied: beyond the caches of CPUs, small on a GPU.
SIDE = {"cpu": 2048, "cuda": 8192}
COPY_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}


def measure(engine: StaticEngine, shapes: Sequence[Shape], start_seconds: float) -> Rates:
    """Time full batches of a few of `shapes`, spread over their lengths, with every lane at work.

    A batch's seconds are its share of the engine's time, the mean of REPETITIONS on each lane.
    start_seconds: what bringing up the engine took, by the caller's clock.
    """
    ordered = sorted(set(shapes))
    picks = sorted({round(i) for i in np.linspace(0, len(ordered) - 1, min(SHAPES, len(ordered)))})
    rates, extra = [], []
    for shape in (ordered[i] for i in reversed(picks)):
        warm_up = _seconds(partial(engine.warm_up, shape))
        batch = _Full.of(shape)
        first = statistics.mean(s for _, _, s in engine.stream([batch] * engine.lanes))
        runs = [s for _, _, s in engine.stream([batch] * (REPETITIONS * engine.lanes))]
        seconds = statistics.mean(runs)
        rates.append(ShapeRate(length=shape.length, batch=shape.batch, seconds=seconds))
        extra.append(warm_up + max(0.0, first - seconds) * engine.lanes)
    return Rates(
        device=engine.device,
        dtype=engine.dtype,
        shapes=tuple(rates),
        start_seconds=start_seconds,
        rung_seconds=statistics.median(extra) if extra else 0.0,
        source="calibration",
    )


class _Full(NamedTuple):
    """A batch without padding; every token is scored, where a task scores tokens."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int32]
    boundaries: NDArray[np.int32]

    @classmethod
    def of(cls, shape: Shape) -> _Full:
        batch, length = shape.batch, shape.length
        ids = np.zeros((batch, length), np.int32)
        return cls(ids, np.full(batch, length, np.int32), np.ones(batch, np.int32))


def ceilings(device: str, dtype: str = "float32") -> Ceilings:
    """The best of a few large matrix products and copies on `device`."""
    where = torch.device(device)
    side, count = SIDE[where.type], COPY_BYTES[where.type]
    a = torch.rand(side, side, device=where, dtype=DTYPES[dtype])
    out = torch.empty_like(a)
    source = torch.zeros(count, dtype=torch.uint8, device=where)
    target = torch.empty_like(source)
    product = _best(lambda: torch.mm(a, a, out=out), where)
    copy = _best(lambda: target.copy_(source), where)
    return Ceilings(flops=2 * side**3 / product, bytes_per_second=2 * count / copy)


def _best(work: Callable[[], object], device: torch.device) -> float:
    def synchronised() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.inference_mode():
        synchronised()
        return min(_seconds(synchronised) for _ in range(5))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
