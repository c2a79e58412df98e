"""The static buffers of one shape and what is run over them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticjob.engine.shape import Shape


class StaticBatch:
    """Buffers of one shape, written before and read after every run; never reallocated."""

    def __init__(self, shape: Shape, device: torch.device, pad_id: int) -> None:
        self.shape = shape
        self.pad_id = pad_id
        pinned = device.type == "cuda"
        size = (shape.batch, shape.length)
        self.host_ids = torch.full(size, pad_id, dtype=torch.int64, pin_memory=pinned)
        self.host_mask = torch.zeros(size, dtype=torch.bool, pin_memory=pinned)
        self.ids = self.host_ids.to(device)  # [B, L]
        self.mask = self.host_mask.to(device)  # [B, L]
        self.columns: dict[str, Tensor] = {}
        self.finite: Tensor | None = None

    def load(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        """Copy a rectangle in; positions beyond a row's length become masked padding.

        A dummy row (length 0) shows its first position: attention over nothing would be 0 / 0.
        """
        mask = np.arange(self.shape.length) < np.maximum(lengths, 1)[:, None]
        self.host_mask.numpy()[:] = mask
        self.host_ids.numpy()[:] = np.where(mask & (lengths > 0)[:, None], ids, self.pad_id)
        if self.ids is not self.host_ids:
            self.ids.copy_(self.host_ids, non_blocking=True)
            self.mask.copy_(self.host_mask, non_blocking=True)

    def compute(self, forward: Callable[[Tensor, Tensor], dict[str, Tensor]]) -> None:
        """Run `forward(ids, mask)` over the buffers and keep its outputs."""
        self.columns = forward(self.ids, self.mask)
        flags = [c.isfinite().flatten(1).all(dim=1) for c in self.columns.values()]
        self.finite = torch.stack(flags).all(dim=0)
