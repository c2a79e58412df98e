"""Text to token ids: the model's tokenizer, limits, truncation and the status of every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from staticjob.config import LimitsConfig
from staticjob.errors import ConfigError
from staticjob.long_runs import LongRuns
from staticjob.records import Status

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
# A long document is first cut to this many characters per allowed token, and further only when
# that did not fill the limit: a 40 MB document is not tokenized whole to keep 512 tokens.
CHARS_PER_TOKEN = 16
# Tokens the cut text must have beyond the limit, so that the cut's own edge is never kept.
CUT_MARGIN = 16


def load_tokenizer(model_dir: Path, trust_remote_code: bool = False) -> Tokenizer:
    """The model's Rust tokenizer, without padding or truncation of its own.

    Raises ConfigError when the model has no tokenizer or only one without a Rust form.
    """
    from tokenizers import Tokenizer

    path = model_dir / "tokenizer.json"
    if path.exists():
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # its Rust code raises nothing narrower
            raise ConfigError(
                f"model file {path}: cannot be read as a tokenizer ({error}); restore it"
            ) from None
    else:
        tokenizer = _convert_tokenizer(model_dir, trust_remote_code)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def require_tokenizer(model_dir: Path) -> None:
    """Raise ConfigError when the model's directory holds no tokenizer at all."""
    if not any((model_dir / name).exists() for name in TOKENIZER_FILES):
        raise ConfigError(
            f"model {model_dir}: no tokenizer (looked for {', '.join(TOKENIZER_FILES)}); "
            "add the tokenizer.json the model was trained with"
        )


def _convert_tokenizer(model_dir: Path, trust_remote_code: bool) -> Tokenizer:
    """Build the Rust tokenizer from older files (vocab.txt, sentencepiece) through transformers."""
    require_tokenizer(model_dir)
    import transformers

    try:
        slow = transformers.AutoTokenizer.from_pretrained(
            str(model_dir), trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # transformers raises many kinds for a missing tokenizer
        raise ConfigError(
            f"model {model_dir}: no usable tokenizer ({str(error).splitlines()[0]}); "
            "add the tokenizer.json the model was trained with"
        ) from None
    backend = getattr(slow, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(f"model {model_dir}: its tokenizer has no fast form; save it as tokenizer.json")
    converted: Tokenizer = backend
    return converted


@dataclass(frozen=True)
class Encoded:
    """Outcome of one row: ids to run, or a status with a reason.

    `boundary` is the index of the first token of a second segment, -1 where there is none. `items` are the
    outcomes of the elements of a row that is a list: they stand for it, unless there are none.
    """

    ids: Sequence[int]
    status: Status
    reason: str = ""
    boundary: int = -1
    items: tuple[Encoded, ...] | None = None


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
        cut = [_cut(texts[i] or "", reach, self._keep) for i in present]
        encodings = self._tokenizer.encode_batch_fast(cut, add_special_tokens=self._adds_special)
        for i, piece, encoding in zip(present, cut, encodings, strict=True):
            text = texts[i] or ""
            if len(piece) < len(text) and not self._overfull(encoding):
                text = self._runs.shorten(text)
                encoding = _encode_longer(
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
        if self._limits.overflow == "refuse":
            return Encoded((), Status.TOO_LONG, f"more than {self.max_length} tokens")
        return Encoded(ids, Status.TRUNCATED, f"cut to {self.max_length} tokens")


def encode_prefixes(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> list[Encoding]:
    """The texts without special tokens, each whole or as far as its first `limit` tokens are certain.

    The tokenizer must not truncate on its own.
    """
    reach = max(1024, limit * CHARS_PER_TOKEN)
    cut = [_cut(text, reach, "start") for text in texts]
    encodings = tokenizer.encode_batch_fast(cut, add_special_tokens=False)

    def full(encoding: Encoding) -> bool:
        return len(encoding.ids) >= limit + CUT_MARGIN

    for i, text in enumerate(texts):
        if len(cut[i]) < len(text) and not full(encodings[i]):
            text = LongRuns(tokenizer).shorten(text)
            encodings[i] = _encode_longer(tokenizer, text, reach, full, "start", False)
    return encodings


def _encode_longer(
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
        piece = _cut(text, reach, keep)
        encoding: Encoding = tokenizer.encode(piece, add_special_tokens=special)
        if len(piece) == len(text) or full(encoding):
            return encoding


def missing(role: str, text: str | None) -> Encoded | None:
    """The outcome of a row whose `role` has no text; None where it has one."""
    if text is None:
        return Encoded((), Status.NULL, f"no value in {role}")
    return None if text else Encoded((), Status.EMPTY, f"empty {role}")


def _cut(text: str, reach: int, keep: Literal["start", "end"]) -> str:
    """At most about `reach` characters of its start or end, cut before a space where one is near."""
    if len(text) <= reach:
        return text
    if keep == "end":
        space = text.find(" ", len(text) - reach, len(text) - reach + 256)
        return text[space if space > 0 else len(text) - reach :]
    space = text.rfind(" ", reach - 256, reach)
    return text[: space if space > 0 else reach]
