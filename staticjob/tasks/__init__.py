"""What a job can compute: one module per task, and one line here.

A task's module has three functions, each called only by the step that needs it:

    encoder(job, model_dir, max_length) -> RowEncoder     columns of the input to token ids
    fields(job, model_dir) -> list[pa.Field]              its output columns, without loading weights
    head(job, model_dir) -> Head                          what follows the model's last layer

A task that generates has no head: its texts come from the decoder.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import pyarrow as pa

    from staticjob.config import JobConfig
    from staticjob.encoding.outcome import Encoded
    from staticjob.engine.heads import Head

# Roles whose values are lists or objects; all others are text.
STRUCTURED = frozenset({"messages", "documents", "token_ids"})


class RowEncoder(Protocol):
    """Rows to token ids within the job's limits."""

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row from the values of each role, all of one length."""


class TaskModule(Protocol):
    """What a task's module offers."""

    def encoder(self, job: JobConfig, model_dir: Path, max_length: int) -> RowEncoder: ...

    def fields(self, job: JobConfig, model_dir: Path) -> list[pa.Field]: ...

    def head(self, job: JobConfig, model_dir: Path) -> Head: ...


@dataclass(frozen=True)
class Task:
    """`reads` are the sets of roles a row can be made of; `optional` may be added to any of them.

    `items` is a role with a list whose elements are run each on its own.
    """

    reads: tuple[frozenset[str], ...]
    optional: frozenset[str] = frozenset()
    generates: bool = False
    items: str | None = None

    @property
    def roles(self) -> list[str]:
        return sorted(frozenset().union(*self.reads, self.optional))


TASKS: dict[str, Task] = {
    "classify": Task((frozenset({"text"}), frozenset({"text", "text_pair"}))),
    "embed": Task((frozenset({"text"}),)),
    "logprob": Task(
        (frozenset({"text"}), frozenset({"context", "continuation"}), frozenset({"token_ids"})),
    ),
    "rerank": Task((frozenset({"query", "document"}), frozenset({"query", "documents"})), items="documents"),
    "reward": Task((frozenset({"messages"}), frozenset({"prompt", "response"}))),
    "generate": Task((frozenset({"prompt"}), frozenset({"messages"})), generates=True),
}


def module(name: str) -> TaskModule:
    """The functions of a task."""
    return cast(TaskModule, importlib.import_module(f"staticjob.tasks.{name}"))
