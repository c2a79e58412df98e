"""Long texts of few tokens, shortened: runs of white space, and words no vocabulary has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Characters left of a long word: more than the longest word a tokenizer looks up (WordPiece: 100).
KEPT = 1000
# A run is looked for where it begins, else every place inside one would be tried again.
SPACES = re.compile(r"(?<![ \t\r\n])[ \t\r\n]{256,}")
WORD = re.compile(rf"(?<![A-Za-z0-9])[A-Za-z0-9]{{{KEPT + 1},}}")


class LongRuns:
    """What one tokenizer makes of long runs, tried once on a few.

    Where white space of any length counts as one space, and a word of any length as one unknown, a
    shortened text has the same tokens as the whole one. Elsewhere runs have tokens by their length, so
    they fill a limit as other texts do, and stay as they are.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        def tokens(text: str) -> list[int]:
            encoding = tokenizer.encode(text, add_special_tokens=False)
            return [*encoding.ids, *(token for rest in encoding.overflowing for token in rest.ids)]

        runs = (character * KEPT for character in (" ", "\t", "\n", "\r\n"))
        self._spaces = all(tokens(f"{run}a{run}a{run}") == tokens(" a a ") for run in runs)
        self._words = tokens("a1" * KEPT) == tokens("a1" * (KEPT // 2))

    def shorten(self, text: str) -> str:
        """A text with the same tokens, its runs cut where this tokenizer does not tell them apart."""
        if self._spaces:
            text = SPACES.sub(" ", text)
        return WORD.sub(lambda word: word[0][:KEPT], text) if self._words else text
