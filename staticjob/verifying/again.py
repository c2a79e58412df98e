"""Rows run again beside other neighbours, their results compared bit by bit with the published ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from staticjob.config.job import JobConfig
from staticjob.engine.shape import Shape
from staticjob.running.finite import make_finite
from staticjob.tasks.roles import TASKS
from staticjob.verifying.sample_batch import SampleBatch
from staticjob.verifying.samples import Sample

if TYPE_CHECKING:
    from staticjob.engine.heads import HeadResult


class Again(Protocol):
    """What runs rows again."""

    device: str
    dtype: str

    @property
    def columns(self) -> Sequence[str]: ...

    def run(self, batch: SampleBatch) -> HeadResult:
        """Results [B]; those of dummy rows mean nothing."""


def engine_again(config: JobConfig, model_dir: Path, shapes: Sequence[Shape]) -> Again:
    # Deferred: torch.
    if TASKS[config.task].generates:
        from staticjob.verifying.texts_again import TextsAgain

        return TextsAgain(model_dir, config, shapes)
    return _HeadsAgain(model_dir, config, shapes)


class _HeadsAgain:
    """The engine of a task with one pass a row."""

    def __init__(self, model_dir: Path, config: JobConfig, shapes: Sequence[Shape]) -> None:
        from staticjob.engine.static_engine import StaticEngine

        self._engine = StaticEngine(model_dir, config, shapes)
        self.device, self.dtype = self._engine.device, self._engine.dtype
        self.columns = [field.name for field in self._engine.fields()]

    def run(self, batch: SampleBatch) -> HeadResult:
        result = self._engine.run(batch.shape, batch.ids, batch.lengths, batch.boundaries)
        return make_finite(self._engine, result, batch)


@dataclass(frozen=True)
class Comparison:
    """One row run again. differing: columns with other bits, and the largest difference of a number."""

    sample: Sample
    differing: dict[str, float]

    @property
    def equal(self) -> bool:
        return not self.differing

    @property
    def difference(self) -> float:
        """Infinite where the row is not finite now."""
        return max(self.differing.values(), default=0.0)


def run_again(
    again: Again, shape: Shape, samples: Sequence[Sample], rng: np.random.Generator
) -> Iterator[Comparison]:
    """Each row compared twice: run in full batches, and in half-empty ones, at random places.

    A row that comes out not finite, in float32 neither, differs infinitely in all its columns.
    """
    for members in (shape.batch, max(1, shape.batch // 2)):
        order = rng.permutation(len(samples))
        for begin in range(0, len(samples), members):
            group = [samples[i] for i in order[begin : begin + members]]
            places = rng.choice(shape.batch, len(group), replace=False).tolist()
            batch = SampleBatch.of(shape, dict(zip(places, group, strict=True)))
            result = again.run(batch)
            for place, sample in batch.placed.items():
                if not result.finite[place]:  # the published one was
                    yield Comparison(sample, dict.fromkeys(sample.published, math.inf))
                    continue
                new = {name: result.columns[name][place] for name in sample.published}
                compared = {name: _compare(new[name], old) for name, old in sample.published.items()}
                yield Comparison(
                    sample, {name: size for name, (equal, size) in compared.items() if not equal}
                )


def _compare(new: Any, old: Any) -> tuple[bool, float]:
    """Whether two results are equal to the bit, and the largest difference of a number; labels have none.

    Beyond 1 it is relative to the old number, as rounding is: a log-probability of -300 has steps of 3e-5.
    """
    if isinstance(new, str | list):
        return list(new) == list(old), 0.0
    before = np.asarray(old, np.float64)
    difference = (np.abs(np.asarray(new, np.float64) - before) / np.maximum(1, np.abs(before))).max()
    return np.asarray(new).tobytes() == np.asarray(old).tobytes(), float(difference)
