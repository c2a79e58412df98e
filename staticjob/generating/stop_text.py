"""Token ids back to text, and stop strings: found across token borders, cut from the text, seen at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from staticjob.engine.decode_batch import Look


@dataclass(frozen=True)
class StopRule:
    """Strings that end a text, and the tokens that are generated before any of them counts."""

    strings: tuple[str, ...]
    min_new_tokens: int = 0


@dataclass(frozen=True)
class RowText:
    """A finished row: its text, how many of its tokens count, and whether a stop string ended it.

    The token that completes a stop string counts; the stop string and what follows it are not text.
    """

    text: str
    tokens: int
    stopped: bool


class GrowingText:
    """The text of one row as its tokens arrive."""

    def __init__(self, tokenizer: Tokenizer, rule: StopRule) -> None:
        self._tokenizer, self._rule = tokenizer, rule
        self._stream = DecodeStream(skip_special_tokens=True)
        self._text = ""
        self.tokens = 0
        self.stop: int | None = None  # where in the text the stop string begins

    @property
    def text(self) -> str:
        """Up to the stop string; characters whose bytes have not all arrived are missing."""
        return self._text[: self.stop]

    def push(self, tokens: Sequence[int]) -> bool:
        """Take tokens until a stop string is complete; returns whether one is."""
        for token in tokens:
            if self.stop is not None:
                break
            self.tokens += 1
            piece = self._stream.step(self._tokenizer, int(token))
            if piece:
                self._search(piece)
        return self.stop is not None

    def _search(self, piece: str) -> None:
        """Append a piece; of the stop strings it completes, the first to be complete counts."""
        before = len(self._text)
        self._text += piece
        if self.tokens <= self._rule.min_new_tokens:
            return
        found = []
        for string in self._rule.strings:
            at = self._text.find(string, max(0, before - len(string) + 1))
            if at >= 0:
                found.append((at + len(string), at))
        if found:
            self.stop = min(found)[1]


class StopWatch:
    """Sees every look at one batch and tells which active rows a stop string has ended."""

    def __init__(self, tokenizer: Tokenizer, rule: StopRule, rows: int) -> None:
        self._texts = [GrowingText(tokenizer, rule) for _ in range(rows)]

    def ended(self, look: Look) -> list[int]:
        """Active rows that are complete."""
        active = [row for row in range(len(self._texts)) if not look.finish[row]]
        return [row for row in active if self._push(row, look)]

    def _push(self, row: int, look: Look) -> bool:
        growing = self._texts[row]
        return growing.push(look.tokens[row, growing.tokens : look.counts[row]].tolist())


def row_text(tokenizer: Tokenizer, tokens: Sequence[int], rule: StopRule, stop_token: bool) -> RowText:
    """The text of a row's generated tokens; `stop_token` says that the last of them ended it.

    Special tokens and the ending token are not text. Bytes that never became a character are U+FFFD.
    """
    shown = tokens[:-1] if stop_token else tokens
    if rule.strings:
        growing = GrowingText(tokenizer, rule)
        if growing.push(shown):
            return RowText(growing.text, growing.tokens, True)
    return RowText(tokenizer.decode(list(shown), skip_special_tokens=True), len(tokens), False)
