"""The static buffers of one shape: written before, computed over, and read after every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticjob.engine.heads import Field, HeadResult, Inputs, Outputs
from staticjob.engine.shape import Shape


class StaticBatch:
    """Allocated once, used for every batch of the shape."""

    def __init__(self, shape: Shape, fields: Sequence[Field], device: torch.device, pad_id: int) -> None:
        self.shape = shape
        self._pad_id = pad_id
        pin = device.type == "cuda"
        self._host_ids = torch.full((shape.batch, shape.length), pad_id, dtype=torch.int64, pin_memory=pin)
        self._host_mask = torch.zeros((shape.batch, shape.length), dtype=torch.bool, pin_memory=pin)
        self._host_mask[:, 0] = True
        self._host_boundaries = torch.full((shape.batch,), -1, dtype=torch.int64, pin_memory=pin)
        self._ids = self._host_ids.to(device)  # [B, L]
        self._mask = self._host_mask.to(device)  # [B, L]
        self._boundaries = self._host_boundaries.to(device)  # [B]
        self._fields = tuple(fields)
        self._columns = {f.name: _column(f, shape, device) for f in fields}
        self._finite = torch.zeros(shape.batch, dtype=torch.bool, device=device)

    def load(self, ids: NDArray[np.int32], lengths: NDArray[np.int32], boundaries: NDArray[np.int32]) -> None:
        """Copy a rectangle in: ids [B, L], lengths and boundaries [B]; beyond a row's length is padding.

        A dummy row (length 0) shows its first position: attention over nothing would be 0 / 0.
        """
        used = np.arange(self.shape.length) < lengths[:, None]
        self._host_ids.numpy()[:] = np.where(used, ids, self._pad_id)
        used[:, 0] = True
        self._host_mask.numpy()[:] = used
        self._host_boundaries.numpy()[:] = boundaries
        if self._ids is not self._host_ids:
            self._ids.copy_(self._host_ids, non_blocking=True)
            self._mask.copy_(self._host_mask, non_blocking=True)
            self._boundaries.copy_(self._host_boundaries, non_blocking=True)

    def inputs(self) -> Inputs:
        """The buffers that a model reads."""
        return Inputs(self._ids, self._mask, self._boundaries)

    def store(self, outputs: Outputs) -> None:
        """Keep a model's results and which of its rows are finite."""
        for field in self._fields:
            values, kept = outputs.columns[field.name], self._columns[field.name]
            (kept[:, : values.shape[1]] if field.length else kept).copy_(values)
        self._finite.copy_(outputs.finite)

    def result(self) -> HeadResult:
        """A copy of the results, rows in the order they were loaded."""
        numbers = {name: values.cpu().numpy().copy() for name, values in self._columns.items()}
        columns = {f.name: _named(f, numbers) for f in self._fields}
        return HeadResult(columns, self._finite.cpu().numpy().copy())


def _column(field: Field, shape: Shape, device: torch.device) -> Tensor:
    width = shape.length if field.length else field.dim
    size = (shape.batch, width) if width else (shape.batch,)
    return torch.zeros(size, dtype=getattr(torch, field.kind), device=device)


def _named(field: Field, numbers: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """A column's values [B] or [B, D]; strings and lists of own length as objects [B]."""
    values = numbers[field.name]
    if field.names:
        names: NDArray[Any] = np.array(field.names, dtype=object)[values]
        return names
    if not field.length:
        return values
    lists = np.empty(len(values), dtype=object)
    lists[:] = [row[:n] for row, n in zip(values, numbers[field.length], strict=True)]
    return lists
