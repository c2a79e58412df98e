"""Vectors in fewer bytes."""

from __future__ import annotations

import torch
from torch import Tensor


def to_int8(vectors: Tensor) -> Tensor:
    """[B, D] → int8 [B, D]: each row scaled so that its largest component is ±127. Cosines are kept."""
    largest = vectors.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(vectors.dtype).tiny)
    return (vectors / largest * 127).nan_to_num().round().to(torch.int8)


def to_bits(vectors: Tensor) -> Tensor:
    """[B, D] → uint8 [B, D / 8]: one bit a component, set where it is positive, the first one highest."""
    powers = (2 ** torch.arange(7, -1, -1, device=vectors.device)).to(torch.uint8)
    bits = (vectors > 0).view(len(vectors), -1, 8)
    return (bits * powers).sum(dim=2, dtype=torch.uint8)
