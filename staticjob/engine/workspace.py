"""Static activation buffers: one set per thread, shared by all layers and all shapes."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

_local = threading.local()


def take(name: str, rows: int, columns: int) -> Tensor:
    """The calling thread's float32 buffer `name` as [rows, columns]; its contents are left over.

    It is allocated for the largest request and every other is a view of its beginning, so shapes run
    largest first allocate once. Two layers that use one name must not overlap in time.
    """
    buffers: dict[str, Tensor] = _local.__dict__.setdefault("buffers", {})
    held = buffers.get(name)
    if held is None or held.numel() < rows * columns:
        held = buffers[name] = torch.empty(rows * columns)
    return held[: rows * columns].view(rows, columns)
