"""The role `text` to token ids within the job's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from staticjob.config.job import LimitsConfig
from staticjob.encoding.long_runs import LongRuns
from staticjob.encoding.outcome import Encoded, cut_or_refused
from staticjob.encoding.prefixes import CHARS_PER_TOKEN, CUT_MARGIN, cut, encode_longer
from staticjob.errors import ConfigError
from staticjob.records.status import Status

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


class TextEncoder:
    """The role `text` to ids within the job's limits."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        limits: LimitsConfig,
        *,
        special: bool = True,
        keep: Literal["start", "end"] = "start",
    ) -> None:
        """`special`: whether the tokenizer adds its special tokens; `keep`: what is left of a longer text."""
        self._tokenizer = tokenizer
        self._adds_special, self._keep = special, keep
        self._special = tokenizer.num_special_tokens_to_add(is_pair=False) if special else 0
        if max_length <= self._special:
            raise ConfigError(
                f"limits.max_length: {max_length} leaves no room beside the tokenizer's "
                f"{self._special} special tokens; give more"
            )
        self.max_length = max_length
        self._limits = limits
        self._room = max_length - self._special
        self._runs = LongRuns(tokenizer)
        tokenizer.enable_truncation(max_length, direction="right" if keep == "start" else "left")

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row, in order."""
        return self.encode_texts(columns["text"])

    def encode_texts(self, texts: Sequence[str | None]) -> list[Encoded]:
        """One outcome per text, in order."""
        present = [i for i, text in enumerate(texts) if text]
        outcomes: list[Encoded] = [
            Encoded((), Status.NULL, "no value") if text is None else Encoded((), Status.EMPTY, "empty text")
            for text in texts
        ]
        reach = max(1024, self.max_length * CHARS_PER_TOKEN)
        pieces = [cut(texts[i] or "", reach, self._keep) for i in present]
        encodings = self._tokenizer.encode_batch_fast(pieces, add_special_tokens=self._adds_special)
        for i, piece, encoding in zip(present, pieces, encodings, strict=True):
            text = texts[i] or ""
            if len(piece) < len(text) and not self._overfull(encoding):
                text = self._runs.shorten(text)
                encoding = encode_longer(
                    self._tokenizer, text, reach, self._overfull, self._keep, self._adds_special
                )
            outcomes[i] = self._outcome(encoding)
        return outcomes

    def _overfull(self, encoding: Encoding) -> bool:
        """Whether a cut text has enough tokens beyond the limit for its edge not to matter."""
        return sum(len(e.ids) - self._special for e in encoding.overflowing) >= CUT_MARGIN

    def _outcome(self, encoding: Encoding) -> Encoded:
        ids = encoding.ids
        if len(ids) <= self._special:
            return Encoded((), Status.EMPTY, "no tokens but special ones")
        if not encoding.overflowing:
            return Encoded(ids, Status.OK)
        return cut_or_refused(ids, self.max_length, self._limits)
