"""A rectangle's result as the run keeps it: what is not finite in a narrower type, again in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from staticjob.engine.heads import HeadResult
    from staticjob.engine.static_engine import Rectangle, StaticEngine


def make_finite(engine: StaticEngine, result: HeadResult, batch: Rectangle) -> HeadResult:
    """The result of the batch, mended in place.

    A real row that it still calls not finite is so in float32 too.
    """
    bad = np.flatnonzero(~result.finite & (batch.lengths > 0))
    if len(bad):
        again = engine.recompute_float32(batch.ids[bad], batch.lengths[bad], batch.boundaries[bad])
        for name, values in result.columns.items():
            values[bad] = again.columns[name]
        result.finite[bad] = again.finite
    return result
