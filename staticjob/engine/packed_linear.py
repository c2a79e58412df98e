"""A linear layer whose weight is laid out once for the product that reads it at every step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Linear = Callable[[Tensor], Tensor]


def pack(weight: Tensor, bias: Tensor | None, rows: int) -> Linear:
    """x [n, in] → x · weightᵀ + bias [n, out]; weight [out, in], laid out for about `rows` rows.

    On a CPU in float32 oneDNN reorders the weight into the blocks its kernel reads: at 32 rows, where
    a product is bound by reading the weight, up to 1.5 times as fast as the plain one (2 cores, Zen 3).
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return lambda x: functional.linear(x, weight, bias)
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    product = torch.ops.mkldnn._linear_pointwise

    def linear(x: Tensor) -> Tensor:
        result: Tensor = product(x, reordered, bias, "none", [], "")
        return result

    return linear
