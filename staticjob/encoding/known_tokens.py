"""Tokens that the tokenizer has and the model has not: rows that hold one would end the whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from staticjob.encoding.outcome import Encoded
from staticjob.records.status import Status

if TYPE_CHECKING:
    from staticjob.tasks.task_module import RowEncoder


class KnownTokens:
    """Another encoder's outcomes; a row, or an element of one, with such a token is in error."""

    def __init__(self, encoder: RowEncoder, vocabulary: int) -> None:
        self._encoder, self._vocabulary = encoder, vocabulary

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row, in order."""
        return [self._checked(outcome) for outcome in self._encoder.encode(columns)]

    def _checked(self, outcome: Encoded) -> Encoded:
        if outcome.items:
            return replace(outcome, items=tuple(map(self._checked, outcome.items)))
        highest = max(outcome.ids, default=0)
        if highest < self._vocabulary:
            return outcome
        reason = f"its token {highest} is none of the model's {self._vocabulary}: is the tokenizer another's?"
        return Encoded((), Status.ERROR, reason)
