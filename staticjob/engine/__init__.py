"""The static-shape engine: fixed buffers, one kernel selection (and on a GPU one graph) per shape.

    engine = StaticEngine(model_dir, job, shapes)     loads weights, allocates buffers
    engine.run(shape, ids, lengths, boundaries)       one rectangle in, one HeadResult out

`heads` and `flops` work without torch; the names below import it when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from staticjob.engine.flops import forward_bytes, forward_flops
from staticjob.engine.shape import Shape

if TYPE_CHECKING:
    from staticjob.engine.heads import HeadResult
    from staticjob.engine.static_engine import StaticEngine

__all__ = ["HeadResult", "Shape", "StaticEngine", "forward_bytes", "forward_flops"]


def __getattr__(name: str) -> Any:
    if name == "StaticEngine":
        from staticjob.engine.static_engine import StaticEngine

        return StaticEngine
    if name == "HeadResult":
        from staticjob.engine.heads import HeadResult

        return HeadResult
    raise AttributeError(name)
