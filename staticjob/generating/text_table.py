"""Texts and tails as Arrow tables: what a chunk flushes while it is under way, and its result at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from staticjob.config.options import GenerateConfig
from staticjob.generating.outcome import BatchCurve
from staticjob.generating.text_rows import RowKey, Tail, TextRow
from staticjob.records.status import Status
from staticjob.running.results import result_schema

FLUSHED = pa.schema(
    [
        ("file", pa.int32()),
        ("row", pa.int64()),
        ("sample", pa.int32()),
        ("finish", pa.string()),  # null of a tail
        ("n_prompt", pa.int32()),
        ("prompt", pa.list_(pa.int32())),  # of a tail
        ("n_tokens", pa.int32()),
        ("n_handed", pa.int32()),
        ("tokens", pa.list_(pa.int32())),  # null where the job does not ask for them; so are the others
        ("logprobs", pa.list_(pa.float32())),
        ("text", pa.string()),
        ("engine", pa.string()),
        ("reason", pa.string()),
    ]
)
CURVES, VLLM_SECONDS = b"curves", b"vllm_seconds"
MIXED = "static+vllm"


@dataclass
class Texts:
    """What is known of a chunk: finished samples, samples to hand over, and the static batches' curves."""

    rows: dict[RowKey, TextRow] = field(default_factory=dict)
    tails: dict[RowKey, Tail] = field(default_factory=dict)
    curves: dict[tuple[int, int], BatchCurve] = field(default_factory=dict)  # by batch and sample
    vllm_seconds: float = 0.0  # that vLLM took for rows of these

    def __bool__(self) -> bool:
        return bool(self.rows or self.tails or self.curves)

    def add(self, rows: Iterable[TextRow], tails: Iterable[Tail], curves: Iterable[BatchCurve]) -> None:
        """What came first counts, but a finished sample is no tail any more."""
        for row in rows:
            self.rows.setdefault(row.key, row)
            self.tails.pop(row.key, None)
        for tail in tails:
            if tail.key not in self.rows:
                self.tails.setdefault(tail.key, tail)
        for curve in curves:
            self.curves.setdefault((curve.index, curve.sample), curve)

    def join(self, other: Texts) -> None:
        """All that another object holds."""
        self.add(other.rows.values(), other.tails.values(), other.curves.values())
        self.vllm_seconds += other.vllm_seconds


def to_table(texts: Texts) -> pa.Table:
    """One row per sample; what concerns whole batches is metadata."""
    records: list[tuple[object, ...]] = []
    for r in texts.rows.values():
        made = r.n_tokens, r.n_handed, r.tokens, r.logprobs, r.text, r.engine, r.reason
        records.append((r.key.file, r.key.row, r.key.sample, r.finish, r.n_prompt, None, *made))
    for t in texts.tails.values():
        so_far = len(t.tokens), 0, t.tokens, t.logprobs, None, None, None
        records.append((t.key.file, t.key.row, t.key.sample, None, len(t.prompt), t.prompt, *so_far))
    columns = list(zip(*records, strict=True)) or [()] * len(FLUSHED)
    metadata = {
        CURVES: json.dumps([curve.model_dump() for curve in texts.curves.values()]),
        VLLM_SECONDS: str(texts.vllm_seconds),
    }
    arrays = [pa.array(list(column), kind.type) for column, kind in zip(columns, FLUSHED, strict=True)]
    return pa.table(arrays, schema=FLUSHED.with_metadata(metadata))


def from_table(table: pa.Table) -> Texts:
    """What to_table was given. ValueError or KeyError for another table."""
    lists = {name: _arrays(table[name]) for name in ("prompt", "tokens", "logprobs")}
    rows, tails = [], []
    for i, r in enumerate(table.drop_columns([*lists]).to_pylist()):
        key = RowKey(r["file"], r["row"], r["sample"])
        prompt, tokens, chances = (arrays[i] for arrays in lists.values())
        if r["finish"] is None:
            tails.append(Tail(key, prompt, tokens, chances))
        else:
            made = r["n_tokens"], r["text"], r["finish"], r["engine"], r["n_handed"]
            rows.append(TextRow(key, r["n_prompt"], *made, tokens, chances, r["reason"]))
    metadata = table.schema.metadata or {}
    texts = Texts(vllm_seconds=float(metadata[VLLM_SECONDS]))
    texts.add(rows, tails, map(BatchCurve.model_validate, json.loads(metadata[CURVES])))
    return texts


def _arrays(column: pa.ChunkedArray) -> list[Any]:
    """A list column as numpy arrays, None where it is null."""
    made: list[Any] = []
    for chunk in column.chunks:
        values, ends = chunk.values.to_numpy(), chunk.offsets.to_numpy()
        pieces = zip(ends, ends[1:], chunk.is_valid().to_pylist(), strict=False)
        made += [values[start:end] if valid else None for start, end, valid in pieces]
    return made


def result_table(
    records: NDArray[np.void],
    rung: int,
    rows: Mapping[RowKey, TextRow],
    options: GenerateConfig,
    heads: Sequence[pa.Field],
) -> pa.Table:
    """The chunk's rows (`ROW_DTYPE`, [n]) with their texts; with n samples each column holds a list of n.

    A row one of whose samples failed is an error as a whole.
    """
    columns: dict[str, list[object]] = {name: [] for name in result_schema(heads).names}
    for record in records:
        file, row = int(record["file"]), int(record["row"])
        samples = [rows[RowKey(file, row, sample)] for sample in range(options.n)]
        failed = next((s for s in samples if s.finish == "error"), None)
        truncated = bool(record["truncated"])
        length = int(record["length"])
        status = Status.ERROR if failed else Status.TRUNCATED if truncated else Status.OK
        columns["file"].append(file)
        columns["row"].append(row)
        columns["item"].append(int(record["item"]))
        columns["status"].append(status.value)
        cut = f"cut to {length} tokens" if truncated else None
        columns["reason"].append(failed.reason if failed else cut)
        columns["n_tokens"].append(length)
        columns["rung"].append(rung)
        engines = {s.engine for s in samples}
        columns["engine"].append(engines.pop() if len(engines) == 1 else MIXED)
        for head in heads:
            columns[head.name].append(None if failed else _value(head.name, samples, options.n))
    schema = result_schema(heads)
    return pa.table([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


def _value(name: str, samples: Sequence[TextRow], n: int) -> object:
    if name == "n_prompt_tokens":
        return samples[0].n_prompt
    values = [_of_sample(name, sample) for sample in samples]
    return values if n > 1 else values[0]


def _of_sample(name: str, sample: TextRow) -> object:
    match name:
        case "text":
            return sample.text
        case "n_generated":
            return sample.n_tokens
        case "finish_reason":
            return sample.finish
        case "token_ids":
            return sample.tokens
        case "token_logprobs":
            return sample.logprobs
    raise KeyError(name)
