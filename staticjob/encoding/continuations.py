"""Texts whose tokens are scored: which tokens are the context, and which one is scored first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from staticjob.config.job import LimitsConfig
from staticjob.encoding.outcome import Encoded, cut_or_refused, missing
from staticjob.encoding.prefixes import encode_prefixes
from staticjob.encoding.tokenizer import leading_special
from staticjob.records.status import Status

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class ContinuationEncoder:
    """`text`, `context` and `continuation`, or `token_ids` to ids; `boundary` is the first scored token.

    Every scored token has one before it. A tokenizer's own first token counts as context; a text without
    any begins to be scored at its second token. An empty context is `start`, where the model has one.
    Of a context beyond the limit the end is kept; a text is kept from its beginning.
    """

    def __init__(
        self, tokenizer: Tokenizer, max_length: int, limits: LimitsConfig, start: int | None, vocabulary: int
    ) -> None:
        self._tokenizer, self._limits, self._max_length = tokenizer, limits, max_length
        self._start = [] if start is None else [start]
        self._vocabulary = vocabulary
        self._first = leading_special(tokenizer)

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row, in order."""
        if "token_ids" in columns:
            return [self._given(ids) for ids in columns["token_ids"]]
        if "text" in columns:
            return self._texts(columns["text"])
        return self._pairs(columns["context"], columns["continuation"])

    def _texts(self, texts: Sequence[str | None]) -> list[Encoded]:
        found = encode_prefixes(self._tokenizer, [text or "" for text in texts], self._max_length)
        return [
            missing("text", text) or self._text([*self._first, *encoding.ids], max(1, len(self._first)))
            for text, encoding in zip(texts, found, strict=True)
        ]

    def _text(self, ids: list[int], boundary: int) -> Encoded:
        if len(ids) <= boundary:
            return Encoded((), Status.EMPTY, f"{len(ids)} tokens: none has one before it")
        if len(ids) <= self._max_length:
            return Encoded(ids, Status.OK, boundary=boundary)
        return cut_or_refused(ids[: self._max_length], self._max_length, self._limits, boundary)

    def _given(self, ids: Any) -> Encoded:
        if ids is None:
            return Encoded((), Status.NULL, "no value in token_ids")
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < self._vocabulary for i in ids):
            reason = f"token_ids: expected a list of integers below {self._vocabulary}"
            return Encoded((), Status.ERROR, reason)
        return self._text(ids, 1)

    def _pairs(self, contexts: Sequence[str | None], continuations: Sequence[str | None]) -> list[Encoded]:
        outcomes: list[Encoded | None] = []
        texts: list[str] = []
        for context, continuation in zip(contexts, continuations, strict=True):
            gone = Encoded((), Status.NULL, "no value in context") if context is None else None
            outcomes.append(gone or missing("continuation", continuation))
            if outcomes[-1] is None:
                # Tokens often begin with a space: one at the context's end belongs to the continuation.
                kept = (context or "").rstrip()
                texts += [kept, (context or "") + (continuation or "")]
        found = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        return [outcome or self._pair(list(next(found).ids), list(next(found).ids)) for outcome in outcomes]

    def _pair(self, context: list[int], whole: list[int]) -> Encoded:
        """Ids of a context and of it with its continuation; what exceeds the context is scored."""
        continuation = whole[len(context) :]
        before = self._first or ([] if context else self._start)
        if not continuation:
            return Encoded((), Status.EMPTY, "no tokens in continuation")
        if not context and not before:
            return Encoded((), Status.EMPTY, "no context, and the model has no token to begin with")
        room = self._max_length - len(before) - len(continuation)
        if room < 0 or room + len(before) < 1:
            reason = f"the continuation alone fills the {self._max_length} tokens of a row"
            return Encoded((), Status.TOO_LONG, reason)
        kept = whole[: len(context)][max(0, len(context) - room) :]
        ids = [*before, *kept, *continuation]
        boundary = len(ids) - len(continuation)
        if len(kept) == len(context):
            return Encoded(ids, Status.OK, boundary=boundary)
        return cut_or_refused(ids, self._max_length, self._limits, boundary)
