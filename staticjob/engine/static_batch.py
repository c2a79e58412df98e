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
    """Allocated once. `part_rows` rows are computed together; a last part is filled with dummy rows."""

    def __init__(
        self, shape: Shape, fields: Sequence[Field], device: torch.device, pad_id: int, part_rows: int
    ) -> None:
        self.shape, self.part_rows = shape, part_rows
        self.parts = -(-shape.batch // part_rows)
        self._pad_id = pad_id
        rows = self.parts * part_rows
        pin = device.type == "cuda"
        self._host_ids = torch.full((rows, shape.length), pad_id, dtype=torch.int64, pin_memory=pin)
        self._host_mask = torch.zeros((rows, shape.length), dtype=torch.bool, pin_memory=pin)
        self._host_mask[:, 0] = True
        self._host_boundaries = torch.full((rows,), -1, dtype=torch.int64, pin_memory=pin)
        self._ids = self._host_ids.to(device)  # [rows, L]
        self._mask = self._host_mask.to(device)  # [rows, L]
        self._boundaries = self._host_boundaries.to(device)  # [rows]
        self._fields = tuple(fields)
        self._columns = {f.name: _column(f, rows, shape.length, device) for f in fields}
        self._finite = torch.zeros(rows, dtype=torch.bool, device=device)

    def load(self, ids: NDArray[np.int32], lengths: NDArray[np.int32], boundaries: NDArray[np.int32]) -> None:
        """Copy a rectangle in: ids [B, L], lengths and boundaries [B]; beyond a row's length is padding.

        A dummy row (length 0) shows its first position: attention over nothing would be 0 / 0.
        """
        batch = self.shape.batch
        used = np.arange(self.shape.length) < lengths[:, None]
        self._host_ids.numpy()[:batch] = np.where(used, ids, self._pad_id)
        used[:, 0] = True
        self._host_mask.numpy()[:batch] = used
        self._host_boundaries.numpy()[:batch] = boundaries
        if self._ids is not self._host_ids:
            self._ids.copy_(self._host_ids, non_blocking=True)
            self._mask.copy_(self._host_mask, non_blocking=True)
            self._boundaries.copy_(self._host_boundaries, non_blocking=True)

    def part(self, index: int) -> Inputs:
        """The rows of one part [part_rows]: views of the buffers."""
        rows = slice(index * self.part_rows, (index + 1) * self.part_rows)
        return Inputs(self._ids[rows], self._mask[rows], self._boundaries[rows])

    def store(self, index: int, outputs: Outputs) -> None:
        """Keep one part's results and which of its rows are finite."""
        rows = slice(index * self.part_rows, (index + 1) * self.part_rows)
        for field in self._fields:
            values = outputs.columns[field.name]
            kept = self._columns[field.name][rows]
            (kept[:, : values.shape[1]] if field.length else kept).copy_(values)
        self._finite[rows] = outputs.finite

    def result(self) -> HeadResult:
        """A copy of the results, rows in the order they were loaded."""
        batch = self.shape.batch
        numbers = {name: values[:batch].cpu().numpy().copy() for name, values in self._columns.items()}
        columns = {f.name: _named(f, numbers) for f in self._fields}
        return HeadResult(columns, self._finite[:batch].cpu().numpy().copy())


def _column(field: Field, rows: int, length: int, device: torch.device) -> Tensor:
    width = length if field.length else field.dim
    size = (rows, width) if width else (rows,)
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
