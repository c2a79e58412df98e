"""The static key-value cache: allocated once, reused by every batch.

Slot s of a row holds the token at position s of that row: prompts stand at the left, so a row's
positions, and with them its bits, do not depend on how far the batch is padded. What a step attends
over is a prefix of the slots, its length a rung: an early step does not read the whole cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from staticjob.engine.shape import Shape
from staticjob.models.dimensions import Dimensions


@dataclass(frozen=True)
class LayerCache:
    """One layer's slots: keys and values [B, kv_heads, C, head_dim]."""

    keys: Tensor
    values: Tensor


class KVCache:
    """Storage for the largest of `shapes` (C = slots per row), seen as one shape at a time."""

    def __init__(
        self, sizes: Dimensions, shapes: Sequence[Shape], device: torch.device, dtype: torch.dtype
    ) -> None:
        self._sizes = sizes
        slots = max(shape.slots for shape in shapes)
        row = sizes.kv_heads * sizes.head_dim
        # Zeros: a page that was never written would otherwise be faulted in during the first batch.
        self._storage = torch.zeros(2, sizes.layers, slots * row, device=device, dtype=dtype)
        self.device = device
        self.bytes = self._storage.nbytes  # Dimensions.cache_bytes of the largest shape

    def layers(self, shape: Shape) -> tuple[LayerCache, ...]:
        """The cache as `shape.batch` rows of `shape.length` slots; shapes share their storage."""
        kv_heads, head_dim = self._sizes.kv_heads, self._sizes.head_dim
        count = shape.slots * kv_heads * head_dim
        view = self._storage[:, :, :count].view(
            2, self._sizes.layers, shape.batch, kv_heads, shape.length, head_dim
        )
        return tuple(LayerCache(keys, values) for keys, values in zip(view[0], view[1], strict=True))

    def clear(self) -> None:
        """Zero it: a masked slot weighs 0, but 0 times a former batch's inf, or inf - inf, is nan."""
        self._storage.zero_()


def write_prompt(layer: LayerCache, keys: Tensor, values: Tensor) -> None:
    """Put whole prompts into slots 0 … L - 1: keys and values [B, kv_heads, L, head_dim]."""
    layer.keys[:, :, : keys.shape[2]] = keys
    layer.values[:, :, : values.shape[2]] = values


def write_step(layer: LayerCache, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Put one token per row into its slot: keys and values [B, kv_heads, head_dim], slots [B]."""
    rows = torch.arange(len(slots), device=slots.device)
    layer.keys[rows, :, slots] = keys
    layer.values[rows, :, slots] = values


def step_mask(slots: Tensor, rung: int) -> Tensor:
    """Which of the first `rung` slots each row may look at: bool [B, rung], True up to its own slot."""
    return torch.arange(rung, device=slots.device) <= slots[:, None]
