"""Activations written over what they are computed from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_GELU = ("GELU", "GELUActivation")
_SILU = ("SiLU", "SiLUActivation")


def activate(activation: Any, values: Tensor) -> Tensor:
    """In place where torch has the in-place form of exactly this function, else as a new tensor."""
    name = type(activation).__name__
    if isinstance(activation, nn.GELU) or name in _GELU:
        activation = torch.ops.aten.gelu_
    elif name in _SILU:
        activation = torch.ops.aten.silu_
    result: Tensor = activation(values)
    return result
