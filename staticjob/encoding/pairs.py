"""Two texts to one row of token ids: what is cut when both do not fit, and where the second begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticjob.config.job import LimitsConfig
from staticjob.encoding.outcome import Encoded, cut_or_refused, missing
from staticjob.encoding.prefixes import encode_prefixes
from staticjob.errors import ConfigError
from staticjob.models.model_files import read_object
from staticjob.records.status import Status

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

# Tokens of the first and the second text and the room for both, which is less → tokens kept of each;
# None where the row cannot be run.
Cut = Callable[[int, int, int], "tuple[int, int] | None"]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens are taken from the longer text, as transformers does."""
    short = min(first, second, room // 2)
    return (short, room - short) if first <= second else (room - short, short)


def keep_first(first: int, second: int, room: int) -> tuple[int, int] | None:
    """Tokens are taken from the second text alone; at least one of it must remain."""
    return (first, room - first) if first < room else None


class PairEncoder:
    """Two roles to ids within the job's limits, by the tokenizer's own template for pairs.

    typed: whether the model is told the second text from the first; only then rows have a boundary.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        roles: tuple[str, str],
        max_length: int,
        limits: LimitsConfig,
        cut: Cut,
        typed: bool,
    ) -> None:
        self._tokenizer, self._roles, self._limits, self._cut, self._typed = (
            tokenizer, roles, limits, cut, typed,
        )  # fmt: skip
        self._room = max_length - tokenizer.num_special_tokens_to_add(is_pair=True)
        self._max_length = max_length
        if self._room < 2:
            raise ConfigError(
                f"limits.max_length: {max_length} leaves no room for a pair beside the tokenizer's "
                f"{max_length - self._room} special tokens; give more"
            )

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row, in order."""
        return self.encode_pairs(columns[self._roles[0]], columns[self._roles[1]])

    def encode_pairs(self, firsts: Sequence[str | None], seconds: Sequence[str | None]) -> list[Encoded]:
        """One outcome per pair, in order; a pair that lacks a text is not run."""
        outcomes = [
            missing(self._roles[0], first) or missing(self._roles[1], second)
            for first, second in zip(firsts, seconds, strict=True)
        ]
        present = [i for i, outcome in enumerate(outcomes) if outcome is None]
        texts = [firsts[i] or "" for i in present] + [seconds[i] or "" for i in present]
        encodings = encode_prefixes(self._tokenizer, texts, self._max_length)
        for n, i in enumerate(present):
            outcomes[i] = self._outcome(encodings[n], encodings[n + len(present)])
        return [outcome for outcome in outcomes if outcome is not None]

    def _outcome(self, first: Encoding, second: Encoding) -> Encoded:
        for role, encoding in zip(self._roles, (first, second), strict=True):
            if not encoding.ids:
                return Encoded((), Status.EMPTY, f"no tokens in {role}")
        sizes = len(first.ids), len(second.ids)
        fits = sum(sizes) <= self._room
        if not fits:
            if self._limits.overflow == "refuse":
                return cut_or_refused((), self._max_length, self._limits)
            kept = self._cut(*sizes, self._room)
            if kept is None:
                reason = f"{self._roles[0]} alone fills the {self._max_length} tokens of a row"
                return Encoded((), Status.ERROR, reason)
            first.truncate(kept[0])
            second.truncate(kept[1])
        # The template is laid over what was kept, so types and boundary are those of the cut pair.
        pair = self._tokenizer.post_process(first, second)
        boundary = pair.type_ids.index(1) if self._typed and 1 in pair.type_ids else -1
        if fits:
            return Encoded(pair.ids, Status.OK, boundary=boundary)
        return cut_or_refused(pair.ids, self._max_length, self._limits, boundary)


def takes_types(model_dir: Path) -> bool:
    """Whether the tokenizer's files let the model have token types; files that are silent do."""
    path = model_dir / "tokenizer_config.json"
    inputs = read_object(path, "expected").get("model_input_names") if path.is_file() else None
    return inputs is None or "token_type_ids" in inputs
