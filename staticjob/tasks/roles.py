"""Which columns each task reads, by role. Free of imports: every job file is checked against it."""

from __future__ import annotations

from dataclasses import dataclass

# Roles whose values are lists or objects; all others are text.
STRUCTURED = frozenset({"messages", "documents", "token_ids"})


@dataclass(frozen=True)
class Task:
    """`reads` are the sets of roles a row can be made of; `items` is a role with a list whose elements are
    run each on its own."""

    reads: tuple[frozenset[str], ...]
    generates: bool = False
    items: str | None = None

    @property
    def roles(self) -> list[str]:
        return sorted(frozenset().union(*self.reads))


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
