"""One rectangle computed as the run does it: what is not finite in a narrower type, again in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from staticjob.engine import HeadResult, Shape, StaticEngine


def run_finite(
    engine: StaticEngine,
    shape: Shape,
    ids: NDArray[np.int32],
    lengths: NDArray[np.int32],
    boundaries: NDArray[np.int32],
) -> HeadResult:
    """Compute ids [B, L], lengths [B] (0 for a dummy row), boundaries [B].

    A real row that the result still calls not finite is so in float32 too.
    """
    result = engine.run(shape, ids, lengths, boundaries)
    bad = np.flatnonzero(~result.finite & (lengths > 0))
    if len(bad):
        again = engine.recompute_float32(ids[bad], lengths[bad], boundaries[bad])
        for name, values in result.columns.items():
            values[bad] = again.columns[name]
        result.finite[bad] = again.finite
    return result
