"""Long texts are tokenized as far as a limit needs, never whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from staticjob.encoding.long_runs import LongRuns

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

# A long document is first cut to this many characters per allowed token, and further only when
# that did not fill the limit: a 40 MB document is not tokenized whole to keep 512 tokens.
CHARS_PER_TOKEN = 16
# Tokens the cut text must have beyond the limit, so that the cut's own edge is never kept.
CUT_MARGIN = 16


def encode_prefixes(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> list[Encoding]:
    """The texts without special tokens, each whole or as far as its first `limit` tokens are certain.

    The tokenizer must not truncate on its own.
    """
    reach = max(1024, limit * CHARS_PER_TOKEN)
    pieces = [cut(text, reach, "start") for text in texts]
    encodings = tokenizer.encode_batch_fast(pieces, add_special_tokens=False)

    def full(encoding: Encoding) -> bool:
        return len(encoding.ids) >= limit + CUT_MARGIN

    for i, text in enumerate(texts):
        if len(pieces[i]) < len(text) and not full(encodings[i]):
            text = LongRuns(tokenizer).shorten(text)
            encodings[i] = encode_longer(tokenizer, text, reach, full, "start", False)
    return encodings


def encode_longer(
    tokenizer: Tokenizer,
    text: str,
    reach: int,
    full: Callable[[Encoding], bool],
    keep: Literal["start", "end"],
    special: bool,
) -> Encoding:
    """Encode ever longer pieces, beyond `reach` characters, until one is full or the text is whole."""
    while True:
        reach *= 4
        piece = cut(text, reach, keep)
        encoding: Encoding = tokenizer.encode(piece, add_special_tokens=special)
        if len(piece) == len(text) or full(encoding):
            return encoding


def cut(text: str, reach: int, keep: Literal["start", "end"]) -> str:
    """At most about `reach` characters of its start or end, cut before a space where one is near."""
    if len(text) <= reach:
        return text
    if keep == "end":
        space = text.find(" ", len(text) - reach, len(text) - reach + 256)
        return text[space if space > 0 else len(text) - reach :]
    space = text.rfind(" ", reach - 256, reach)
    return text[: space if space > 0 else reach]
