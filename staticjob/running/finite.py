"""A rectangle's result as the run keeps it: what is not finite in a narrower type, again in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from staticjob.engine import HeadResult, StaticEngine


def make_finite(
    engine: StaticEngine,
    result: HeadResult,
    ids: NDArray[np.int32],
    lengths: NDArray[np.int32],
    boundaries: NDArray[np.int32],
) -> HeadResult:
    """The result of ids [B, L], lengths [B] (0 for a dummy row), boundaries [B], mended in place.

    A real row that it still calls not finite is so in float32 too.
    """
    bad = np.flatnonzero(~result.finite & (lengths > 0))
    if len(bad):
        again = engine.recompute_float32(ids[bad], lengths[bad], boundaries[bad])
        for name, values in result.columns.items():
            values[bad] = again.columns[name]
        result.finite[bad] = again.finite
    return result
