"""Which word a mistyped one was to be, for the end of a message."""

from __future__ import annotations

import difflib
from collections.abc import Collection

SHOWN_WORDS = 20


def meant(word: str, words: Collection[str], cutoff: float = 0.5) -> str:
    """The end of a message: which of `words` a mistyped `word` was to be; '' where none is near."""
    close = difflib.get_close_matches(word, words, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest(word: str, words: Collection[str]) -> str:
    """As `meant`, and the words themselves (the first of many) where none is near."""
    return meant(word, words) or f"; valid: {', '.join(sorted(set(words))[:SHOWN_WORDS])}"
