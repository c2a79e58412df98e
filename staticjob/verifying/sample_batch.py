"""Sampled rows laid into one rectangle, each at a place of its own, with dummy rows in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from staticjob.engine.shape import Shape
from staticjob.verifying.samples import Sample


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """ids [B, L], lengths [B] (0 for a dummy row), boundaries [B]; `placed`: who stands at which place."""

    shape: Shape
    placed: Mapping[int, Sample]
    ids: NDArray[np.int32]
    lengths: NDArray[np.int32]
    boundaries: NDArray[np.int32]

    @classmethod
    def of(cls, shape: Shape, placed: Mapping[int, Sample]) -> SampleBatch:
        """The rectangle with these rows at these places."""
        ids = np.zeros((shape.batch, shape.length), np.int32)
        lengths = np.zeros(shape.batch, np.int32)
        boundaries = np.full(shape.batch, -1, np.int32)
        for place, sample in placed.items():
            ids[place, : len(sample.ids)] = sample.ids
            lengths[place] = len(sample.ids)
            boundaries[place] = sample.boundary
        return cls(shape, placed, ids, lengths, boundaries)
