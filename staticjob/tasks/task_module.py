"""What the module of a task offers, and the way to it: each is imported by the step that needs it alone."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from staticjob.config.job import JobConfig
from staticjob.encoding.outcome import Encoded
from staticjob.engine.heads import Head

if TYPE_CHECKING:
    import pyarrow as pa


class RowEncoder(Protocol):
    """Rows to token ids within the job's limits."""

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row from the values of each role, all of one length."""


class TaskModule(Protocol):
    """Three functions, each called only by the step that needs it."""

    def encoder(self, job: JobConfig, model_dir: Path, max_length: int) -> RowEncoder:
        """Columns of the input to token ids."""

    def fields(self, job: JobConfig, model_dir: Path) -> list[pa.Field]:
        """Its output columns, without loading weights."""

    def head(self, job: JobConfig, model_dir: Path) -> Head:
        """What follows the model's last layer; none of a task that generates: its texts are the decoder's."""


def task_module(name: str) -> TaskModule:
    """The functions of a task."""
    return cast(TaskModule, importlib.import_module(f"staticjob.tasks.{name}"))
