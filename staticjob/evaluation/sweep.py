"""One job at every point of a grid, each against its gold columns, side by side.

A sweep's file is a job file with two sections more: `sweep` names fields and the values each takes,
`metrics` what is counted. Every point is a job of its own beneath the sweep's output: run again, what
is finished is kept.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import TypeAdapter, ValidationError

from staticjob import storage
from staticjob.config import JobConfig, apply_override, fill_date, read_job_file, validate_job
from staticjob.errors import ConfigError
from staticjob.evaluation.metrics import READS, Metric, Value, evaluate
from staticjob.layout import Output, join
from staticjob.local_run import run_job
from staticjob.record import Record
from staticjob.records import Manifest


class Point(Record):
    """One job of a sweep: what it changed, and what came of it."""

    settings: dict[str, Any]
    output: str
    metrics: dict[str, Value]
    rows: int
    useful_tokens: int
    useful_share: float
    seconds: float
    cost: float | None


class SweepResult(Record):
    """`sweep.json`."""

    points: tuple[Point, ...]


def run_sweep(path: str | Path, date: dt.date | None) -> tuple[SweepResult, str]:
    """Run every point and count; returns the table and the URI of `sweep.json`.

    Raises ConfigError for a grid or a metric that does not fit, before any point is run.
    """
    points, metrics, output = read_sweep(path, date)
    done = []
    for settings, config in points:
        manifest = run_job(config).manifest
        done.append(_point(settings, config, manifest, metrics))
    result = SweepResult(points=tuple(done))
    uri = join(output, "sweep.json")
    storage.put_json(uri, result)
    return result, uri


def read_sweep(
    path: str | Path, date: dt.date | None
) -> tuple[list[tuple[dict[str, Any], JobConfig]], list[Metric], str]:
    """Points of a sweep's file as (settings, job), its metrics, and where its output lies."""
    data = read_job_file(path)
    grid, counted = data.pop("sweep", None), data.pop("metrics", None)
    if not isinstance(grid, dict) or not all(isinstance(v, list) and v for v in grid.values()):
        raise ConfigError(
            f"{path}: sweep: expected fields with lists of values, e.g. limits.max_length: [128]"
        )
    try:
        metrics = TypeAdapter(list[Metric]).validate_python(counted or [])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: metrics.{where}: {first['msg']}") from None
    base = fill_date(validate_job(data, str(path)), date, str(path)).output.uri
    points = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        own = deepcopy(data)
        for key, value in settings.items():
            apply_override(own, f"{key}={yaml.safe_dump(value, default_flow_style=True)}")
        own.setdefault("output", {})["uri"] = join(base, _folder(settings))
        config = fill_date(validate_job(own, f"{path} at {settings}"), date, str(path))
        points.append((settings, config))
    return points, metrics, base


def _folder(settings: dict[str, Any]) -> str:
    """A folder's name by what the point changes: the same point finds its work again."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
    return f"point-{digest}"


def _point(settings: dict[str, Any], config: JobConfig, manifest: Manifest, metrics: list[Metric]) -> Point:
    wanted = {"n_scored", *(READS[m.metric] for m in metrics)}
    wanted |= {name for m in metrics for name in (m.gold, m.group_by) if name}
    rows = [row for batch in _read(Output(config.output.uri), manifest, wanted) for row in batch.to_pylist()]
    return Point(
        settings=settings,
        output=config.output.uri,
        metrics={metric.name: evaluate(metric, rows) for metric in metrics},
        rows=manifest.rows,
        useful_tokens=manifest.ledger.useful,
        useful_share=manifest.ledger.useful_share,
        seconds=manifest.seconds,
        cost=manifest.cost,
    )


def _read(output: Output, manifest: Manifest, columns: set[str]) -> Iterator[pa.Table]:
    """The named columns of every output file, as far as they are there."""
    for file in manifest.files:
        with pa.BufferReader(storage.read(output.file(file.path))) as source:
            parquet = pq.ParquetFile(source)
            yield parquet.read([name for name in parquet.schema_arrow.names if name in columns])
