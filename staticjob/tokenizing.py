"""Text to token ids: limits, truncation and the status of every row.

One `Encoder` turns texts into ids with the Rust tokenizer; `tokenize_split` streams a split
through it, writes sorted parts and answers the rows no model has to see.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from staticjob import dataset, storage
from staticjob.config import JobConfig, LimitsConfig
from staticjob.errors import ConfigError
from staticjob.layout import Work
from staticjob.records import (
    ID_DTYPE,
    ROW_DTYPE,
    FileSlice,
    Prepared,
    RowError,
    SliceStats,
    Split,
    SplitStats,
    Status,
)
from staticjob.running import results
from staticjob.running.parts import PartWriter

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

ARRIVAL_BATCH = 32
FIRST_ERRORS = 10
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
    """Outcome of one text: ids to run, or a status with a reason."""

    ids: Sequence[int]
    status: Status
    reason: str = ""


class Encoder:
    """Texts to ids within the job's limits."""

    def __init__(self, tokenizer: Tokenizer, max_length: int, limits: LimitsConfig) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.num_special_tokens_to_add(is_pair=False)
        if max_length <= self._special:
            raise ConfigError(
                f"limits.max_length: {max_length} leaves no room beside the tokenizer's "
                f"{self._special} special tokens; give more"
            )
        self.max_length = max_length
        self._limits = limits
        self._room = max_length - self._special
        tokenizer.enable_truncation(max_length)

    def encode(self, texts: Sequence[str | None]) -> list[Encoded]:
        """One outcome per text, in order."""
        present = [i for i, text in enumerate(texts) if text]
        outcomes: list[Encoded] = [
            Encoded((), Status.NULL, "no value") if text is None else Encoded((), Status.EMPTY, "empty text")
            for text in texts
        ]
        reach = max(1024, self.max_length * CHARS_PER_TOKEN)
        cut = [_cut(texts[i] or "", reach) for i in present]
        for i, prefix, encoding in zip(present, cut, self._tokenizer.encode_batch_fast(cut), strict=True):
            text = texts[i] or ""
            if len(prefix) < len(text) and not self._overfull(encoding):
                encoding = self._encode_longer(text, reach)
            outcomes[i] = self._outcome(encoding)
        return outcomes

    def _overfull(self, encoding: Encoding) -> bool:
        """Whether a cut text has enough tokens beyond the limit for its edge not to matter."""
        return sum(len(e.ids) - self._special for e in encoding.overflowing) >= CUT_MARGIN

    def _encode_longer(self, text: str, reach: int) -> Encoding:
        """Encode ever longer prefixes until the limit is passed or the text is whole."""
        while True:
            reach *= 4
            prefix = _cut(text, reach)
            encoding: Encoding = self._tokenizer.encode(prefix)
            if len(prefix) == len(text) or self._overfull(encoding):
                return encoding

    def _outcome(self, encoding: Encoding) -> Encoded:
        ids = encoding.ids
        if len(ids) <= self._special:
            return Encoded((), Status.EMPTY, "no tokens but special ones")
        if not encoding.overflowing:
            return Encoded(ids, Status.OK)
        if self._limits.overflow == "refuse":
            return Encoded((), Status.TOO_LONG, f"more than {self.max_length} tokens")
        return Encoded(ids, Status.TRUNCATED, f"cut to {self.max_length} tokens")


def load_encoder(config: JobConfig, model_dir: Path, max_length: int) -> Encoder:
    """The encoder of a job whose limit is `max_length` tokens."""
    return Encoder(load_tokenizer(model_dir, config.model.trust_remote_code), max_length, config.limits)


def _cut(text: str, reach: int) -> str:
    """At most about `reach` characters, ending before a space where one is near."""
    if len(text) <= reach:
        return text
    space = text.rfind(" ", reach - 256, reach)
    return text[: space if space > 0 else reach]


def tokenize_split(work: Work, prepared: Prepared, split: Split, encoder: Encoder) -> SplitStats:
    """Tokenize one split into sorted parts and the list of answered rows; write its marker last.

    Raises DataError for a missing column or an unreadable object (nothing is published then).
    """
    started = time.perf_counter()
    state = _SplitState(PartWriter(work, split.id))
    for piece in split.slices:
        state.slices.append(_tokenize_slice(prepared, piece, encoder, state))
    state.parts.flush()
    state.close_arrival()
    storage.put(work.answered(split.id), results.to_ipc(state.answered_table()))
    stats = SplitStats(
        split=split.id,
        parts=tuple(state.parts.parts),
        slices=tuple(state.slices),
        statuses=dict(state.statuses),
        arrival_slots=state.arrival_slots,
        first_errors=tuple(state.first_errors),
        seconds=time.perf_counter() - started,
    )
    storage.put_json(work.split(split.id), stats)
    return stats


@dataclass
class _SplitState:
    """What grows while a split is read."""

    parts: PartWriter
    slices: list[SliceStats] = field(default_factory=list)
    statuses: Counter[Status] = field(default_factory=Counter)
    first_errors: list[RowError] = field(default_factory=list)
    answered: list[pa.Table] = field(default_factory=list)
    arrival_slots: int = 0
    _waiting: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    def count_arrival(self, lengths: NDArray[np.int32]) -> None:
        """Account for runnable rows in the order they arrive, ARRIVAL_BATCH at a time."""
        lengths = np.concatenate([self._waiting, lengths])
        whole = len(lengths) // ARRIVAL_BATCH * ARRIVAL_BATCH
        longest = lengths[:whole].reshape(-1, ARRIVAL_BATCH).max(axis=1)
        self.arrival_slots += int(longest.sum()) * ARRIVAL_BATCH
        self._waiting = lengths[whole:]

    def close_arrival(self) -> None:
        if len(self._waiting):
            self.arrival_slots += int(self._waiting.max()) * len(self._waiting)
            self._waiting = self._waiting[:0]

    def answer(self, rows: list[tuple[int, int, str, str]]) -> None:
        """Keep the outcome of rows (file, row, status, reason) that no model has to see."""
        if not rows:
            return
        columns = [*zip(*rows, strict=True), (0,) * len(rows)]
        schema = results.ANSWERED_SCHEMA
        self.answered.append(pa.table(dict(zip(schema.names, columns, strict=True)), schema))

    def answered_table(self) -> pa.Table:
        return pa.concat_tables([results.ANSWERED_SCHEMA.empty_table(), *self.answered])


def _tokenize_slice(prepared: Prepared, piece: FileSlice, encoder: Encoder, state: _SplitState) -> SliceStats:
    config = prepared.config
    file = prepared.files[piece.file]
    text_column = config.input.columns["text"]
    schemas: list[pa.Schema] = []
    rows = 0
    columns = None if config.input.keep == "all" else list(dict.fromkeys([text_column, *config.input.keep]))
    for batch in dataset.read_slice(file, piece, columns, text=[text_column]):
        kept = batch.table.schema.names if config.input.keep == "all" else config.input.keep
        schemas.append(pa.schema([batch.table.schema.field(name) for name in kept]))
        texts = dataset.text_values(batch.table[text_column], file.path)
        outcomes = encoder.encode(texts)
        for row, reason in batch.errors.items():
            outcomes[row - batch.first_row] = Encoded((), Status.ERROR, reason)
        _record(file.path, piece.file, batch.first_row, outcomes, state)
        rows += batch.rows
    return SliceStats(
        file=piece.file,
        first_row=piece.first_row,
        rows=rows,
        kept_schema=dataset.encode_schema(dataset.unify(schemas)),
    )


def _record(path: str, file: int, first_row: int, outcomes: list[Encoded], state: _SplitState) -> None:
    """Send runnable rows to the part and the others to the answered rows."""
    runnable = [(i, o) for i, o in enumerate(outcomes) if o.ids]
    records = np.zeros(len(runnable), dtype=ROW_DTYPE)
    records["file"] = file
    records["row"] = [first_row + i for i, _ in runnable]
    records["length"] = [len(o.ids) for _, o in runnable]
    records["truncated"] = [o.status is Status.TRUNCATED for _, o in runnable]
    records["boundary"] = -1
    ids = np.fromiter(chain.from_iterable(o.ids for _, o in runnable), ID_DTYPE, int(records["length"].sum()))
    state.parts.add(records, ids)
    state.count_arrival(records["length"])
    state.statuses.update(outcome.status for outcome in outcomes)
    others = [(i, o) for i, o in enumerate(outcomes) if not o.ids]
    state.answer([(file, first_row + i, o.status.value, o.reason) for i, o in others])
    for i, outcome in others:
        if outcome.status is Status.ERROR and len(state.first_errors) < FIRST_ERRORS:
            state.first_errors.append(
                RowError(file=path, row=first_row + i, status=outcome.status, reason=outcome.reason)
            )
