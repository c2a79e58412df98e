"""What a task's head is to the engine: a loaded model and one part of a batch in, output columns out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

Kind = Literal["float32", "float16", "int32", "int8", "uint8", "bool"]
# Which of transformers' classes loads the model a head needs.
Loads = Literal["AutoModel", "AutoModelForSequenceClassification", "AutoModelForCausalLM"]


@dataclass(frozen=True)
class Field:
    """One output column: `dim` numbers a row, or a single one where `dim` is 0.

    With `names` the head gives int32 numbers and the column holds their names. With `length` the head
    gives up to L numbers a row, and the column named so says how many of them count. `note` is a key and
    a value that go with the column into the output's schema.
    """

    name: str
    kind: Kind = "float32"
    dim: int = 0
    names: tuple[str, ...] = ()
    length: str = ""
    note: tuple[str, str] | None = None

    def arrow(self) -> pa.Field:
        """A number, a list of fixed or own length, or string where the numbers have names."""
        import pyarrow as pa

        kind = pa.string() if self.names else pa.from_numpy_dtype(np.dtype(self.kind))
        if self.length:
            kind = pa.list_(kind)
        elif self.dim:
            kind = pa.list_(kind, self.dim)
        return pa.field(self.name, kind, metadata=dict([self.note]) if self.note else None)


class Inputs(NamedTuple):
    """Rows that are computed together, on the device. Every row has at least one unmasked token."""

    ids: Tensor  # [B, L] int64
    mask: Tensor  # [B, L] bool, True where a row has a token
    boundaries: Tensor  # [B] int64: first token of a second segment, -1 where there is none


class Outputs(NamedTuple):
    """Columns by name, first axis B, and which rows [B] were finite in all that they come from."""

    columns: dict[str, Tensor]
    finite: Tensor


@dataclass(frozen=True)
class HeadResult:
    """Columns by name with first axis B, and which rows hold finite numbers only."""

    columns: dict[str, NDArray[Any]]
    finite: NDArray[np.bool_]


class Head(Protocol):
    """What a task computes with a model, for a part of a batch at a time."""

    @property
    def loads(self) -> Loads:
        """The class that loads its model."""

    @property
    def scores_vocabulary(self) -> bool:
        """Whether it computes the logits of a whole vocabulary."""

    def fields(self) -> list[Field]:
        """Its output columns."""

    def __call__(self, model: Any, inputs: Inputs) -> Outputs:
        """Free of host decisions, so that it can be captured; called from several threads."""


def finite_rows(values: Tensor) -> Tensor:
    """Which rows of values [B, …] are finite throughout: bool [B]."""
    return values.isfinite().reshape(len(values), -1).all(dim=1)
