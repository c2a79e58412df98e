"""Token vectors [B, L, D] and mask [B, L] to one vector a row [B, D].

A masked position may hold anything, so it is replaced, never multiplied by zero: 0 × inf is nan.
Where a row's tokens are is read from the mask, so either side may be padded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    kept = hidden.masked_fill(~mask.unsqueeze(-1), 0.0)
    # The sum runs over positions in order for every row alike: bits do not depend on the neighbours.
    return kept.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def cls(hidden: Tensor, mask: Tensor) -> Tensor:
    """The first unmasked token."""
    return _take(hidden, mask.int().argmax(dim=1))


def last(hidden: Tensor, mask: Tensor) -> Tensor:
    """The last unmasked token."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return _take(hidden, (positions * mask).argmax(dim=1))


def maximum(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(dim=1)


def normalize(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, p=2, dim=1)


def _take(hidden: Tensor, index: Tensor) -> Tensor:
    """Row b's vector at position index[b]."""
    return hidden.gather(1, index.view(-1, 1, 1).expand(-1, 1, hidden.shape[2])).squeeze(1)


POOL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mean": mean, "cls": cls, "max": maximum, "last": last}
