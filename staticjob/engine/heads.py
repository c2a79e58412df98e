"""What follows the model's last layer, per task: token vectors in, output columns out.

`output_fields` names a task's columns without loading weights; `HEADS` has one class per task.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from staticjob.config import JobConfig
from staticjob.engine.sentence_files import embedding_of
from staticjob.errors import ConfigError
from staticjob.models.model_files import model_config

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

HIDDEN_SIZE = ("hidden_size", "d_model", "dim", "n_embd")


@dataclass(frozen=True)
class Field:
    """One output column: `dim` float32 numbers a row."""

    name: str
    kind: str
    dim: int


@dataclass(frozen=True)
class HeadResult:
    """Columns by name with first axis B, and which rows hold finite numbers only."""

    columns: dict[str, NDArray[np.float32]]
    finite: NDArray[np.bool_]


class EmbedHead:
    """One vector a row, pooled over its tokens and, where wanted, of unit length."""

    def __init__(self, job: JobConfig, model_dir: Path) -> None:
        self.embedding = embedding_of(model_dir, job.embed)
        config = model_config(model_dir)
        config = config.get("text_config") or config
        self.dim = next((config[k] for k in HIDDEN_SIZE if isinstance(config.get(k), int)), 0)
        if not self.dim:
            raise ConfigError(f"model {model_dir}: config.json names no hidden size; task embed needs one")

    def fields(self) -> list[Field]:
        return [Field("embedding", "float32", self.dim)]

    def __call__(self, hidden: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """hidden [B, L, D], mask [B, L] bool; every row has at least one unmasked token."""
        from staticjob.engine import pooling

        vectors = pooling.POOL[self.embedding.pooling](hidden.float(), mask)
        if self.embedding.normalize:
            vectors = pooling.normalize(vectors)
        return {"embedding": vectors}


HEADS: dict[str, Any] = {"embed": EmbedHead}


def output_fields(job: JobConfig, model_dir: Path) -> list[pa.Field]:
    """Arrow fields of the task's columns: fixed_size_list<float32>[dim] for vectors."""
    import pyarrow as pa

    head = HEADS[job.task](job, model_dir)
    return [pa.field(f.name, pa.list_(pa.float32(), f.dim)) for f in head.fields()]
