"""What a task's head is to the engine: token vectors in, output columns out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa
    import torch


@dataclass(frozen=True)
class Field:
    """One output column: `dim` float32 numbers a row."""

    name: str
    kind: str
    dim: int

    def arrow(self) -> pa.Field:
        """fixed_size_list<float32>[dim]."""
        import pyarrow as pa

        return pa.field(self.name, pa.list_(pa.float32(), self.dim))


@dataclass(frozen=True)
class HeadResult:
    """Columns by name with first axis B, and which rows hold finite numbers only."""

    columns: dict[str, NDArray[np.float32]]
    finite: NDArray[np.bool_]


class Head(Protocol):
    """What follows the model's last layer."""

    def fields(self) -> list[Field]:
        """Its output columns."""

    def __call__(self, hidden: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """hidden [B, L, D], mask [B, L] bool; every row has at least one unmasked token."""
