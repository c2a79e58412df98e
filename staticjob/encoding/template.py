"""A query and a document in a template's text to ids; of what is too long the document is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from staticjob.config.job import LimitsConfig
from staticjob.encoding.outcome import Encoded, cut_or_refused, missing
from staticjob.encoding.prefixes import encode_prefixes
from staticjob.encoding.tokenizer import leading_special
from staticjob.errors import ConfigError
from staticjob.records.status import Status

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


class TemplateEncoder:
    """`template` holds {query} and, behind it, {document}; what follows the document is always kept."""

    def __init__(self, tokenizer: Tokenizer, template: str, max_length: int, limits: LimitsConfig) -> None:
        self._tokenizer, self._limits, self._max_length = tokenizer, limits, max_length
        before, _, self._after = template.partition("{document}")
        self._begin, _, self._between = before.partition("{query}")
        self._tail = tokenizer.encode(self._after, add_special_tokens=False).ids
        self._first = leading_special(tokenizer)
        self._room = max_length - len(self._first) - len(self._tail)
        if self._room < 1:
            raise ConfigError(
                f"limits.max_length: {max_length} leaves no room beside the template's "
                f"{max_length - self._room} tokens behind the document; give more"
            )

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row, in order."""
        pairs = list(zip(columns["query"], columns["document"], strict=True))
        outcomes = [missing("query", query) or missing("document", document) for query, document in pairs]
        present = [i for i, outcome in enumerate(outcomes) if outcome is None]
        heads = [f"{self._begin}{pairs[i][0]}{self._between}" for i in present]
        bodies = [head + str(pairs[i][1]) for head, i in zip(heads, present, strict=True)]
        found = encode_prefixes(self._tokenizer, heads + bodies, self._max_length)
        for n, i in enumerate(present):
            outcomes[i] = self._outcome(found[n], found[n + len(present)])
        return [outcome for outcome in outcomes if outcome is not None]

    def _outcome(self, head: Encoding, body: Encoding) -> Encoded:
        if len(head.ids) >= self._room:
            reason = f"template and query alone fill the {self._max_length} tokens of a row"
            return Encoded((), Status.ERROR, reason)
        ids = [*self._first, *body.ids[: self._room], *self._tail]
        if len(body.ids) <= self._room:
            return Encoded(ids, Status.OK)
        return cut_or_refused(ids, self._max_length, self._limits)
