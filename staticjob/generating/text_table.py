"""Texts and tails as Arrow tables: what a chunk flushes while it is under way, and its result at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from staticjob.config import GenerateConfig
from staticjob.generating.generate_rows import RowKey, Tail, TextRow
from staticjob.generating.outcome import BatchCurve
from staticjob.records import Status
from staticjob.running.results import result_schema

FLUSHED = pa.schema(
    [
        ("file", pa.int32()),
        ("row", pa.int64()),
        ("sample", pa.int32()),
        ("finish", pa.string()),  # null of a tail
        ("n_prompt", pa.int32()),
        ("prompt", pa.list_(pa.int32())),  # of a tail
        ("tokens", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("text", pa.string()),
        ("engine", pa.string()),
        ("reason", pa.string()),
    ]
)
CURVES = b"curves"
MIXED = "static+vllm"


@dataclass
class Texts:
    """What is known of a chunk: finished samples, samples to hand over, and the static batches' curves."""

    rows: dict[RowKey, TextRow] = field(default_factory=dict)
    tails: dict[RowKey, Tail] = field(default_factory=dict)
    curves: dict[tuple[int, int], BatchCurve] = field(default_factory=dict)  # by batch and sample

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


def to_table(rows: Sequence[TextRow], tails: Sequence[Tail], curves: Sequence[BatchCurve]) -> pa.Table:
    """One row per sample; the curves are metadata."""
    records: list[tuple[object, ...]] = []
    for r in rows:
        made = r.tokens, r.logprobs, r.text, r.engine, r.reason
        records.append((r.key.file, r.key.row, r.key.sample, r.finish, r.n_prompt, None, *made))
    for t in tails:
        so_far = t.tokens, t.logprobs, None, None, None
        records.append((t.key.file, t.key.row, t.key.sample, None, len(t.prompt), t.prompt, *so_far))
    columns = list(zip(*records, strict=True)) or [()] * len(FLUSHED)
    metadata = {CURVES: json.dumps([curve.model_dump() for curve in curves])}
    arrays = [pa.array(list(column), kind.type) for column, kind in zip(columns, FLUSHED, strict=True)]
    return pa.table(arrays, schema=FLUSHED.with_metadata(metadata))


def from_table(table: pa.Table) -> tuple[list[TextRow], list[Tail], list[BatchCurve]]:
    """What to_table was given. ValueError or KeyError for another table."""
    rows, tails = [], []
    for r in table.to_pylist():
        key = RowKey(r["file"], r["row"], r["sample"])
        tokens, chances = tuple(r["tokens"]), tuple(r["logprobs"])
        if r["finish"] is None:
            tails.append(Tail(key, tuple(r["prompt"]), tokens, chances))
        else:
            rows.append(
                TextRow(key, r["n_prompt"], tokens, r["text"], r["finish"], r["engine"], chances, r["reason"])
            )
    curves = json.loads((table.schema.metadata or {})[CURVES])
    return rows, tails, [BatchCurve.model_validate(curve) for curve in curves]


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
            return len(sample.tokens)
        case "finish_reason":
            return sample.finish
        case "token_ids":
            return sample.tokens
        case "token_logprobs":
            return sample.logprobs
    raise KeyError(name)
