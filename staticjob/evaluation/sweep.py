"""One job at every point of a grid, each against its gold columns, side by side.

Every point is a job of its own beneath the sweep's output: run again, what is finished is kept. Points
whose texts become the same tokens share them.

    sweep, points = prepare_points(grid)    pins every point and writes down what belongs together
    …                                       each point's job is run, here or by a scheduler
    result, uri = tabulate(sweep)           counts the finished points: sweep.json and sweep.html
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from staticjob import claim, storage
from staticjob.errors import ConfigError, DataError
from staticjob.evaluation.grid import READS, Grid, Metric, by_name
from staticjob.evaluation.metrics import evaluate
from staticjob.evaluation.results import PointResult, SweepResult
from staticjob.layout import WORK_FOLDER, Output, Work, join, sweep_html
from staticjob.local_run import run_job
from staticjob.prepare import prepare
from staticjob.records.output import Manifest
from staticjob.records.prepared import Prepared
from staticjob.records.record import Record


class PreparedPoint(Record):
    """A pinned point. `splits` are those to tokenize: none where an earlier point has the same tokens."""

    settings: dict[str, Any]
    output: str
    work: str
    splits: tuple[str, ...]


class PreparedSweep(Record):
    """What `tabulate` counts."""

    name: str
    output: str
    points: tuple[PreparedPoint, ...]
    metrics: tuple[Metric, ...]


def run_sweep(grid: Grid) -> tuple[SweepResult, str]:
    """Run every point here, one after the other, and count; returns the table and the URI of `sweep.json`.

    What can be known to be wrong with any point is raised before the first is run.
    """
    sweep, _ = prepare_points(grid)
    for point in grid.points:
        run_job(point.config, shared_tokens=shared_tokens(grid))
    return tabulate(sweep)


def prepare_points(grid: Grid) -> tuple[PreparedSweep, str]:
    """Pin every point; returns the sweep and the URI it is kept at, for `load_sweep`."""
    points, seen = [], set()
    for point in grid.points:
        work, prepared, _ = prepare(point.config, shared_tokens=shared_tokens(grid))
        new = work.tokens not in seen
        seen.add(work.tokens)
        points.append(
            PreparedPoint(
                settings=point.settings,
                output=point.config.output.uri,
                work=work.uri,
                splits=tuple(split.id for split in prepared.splits) if new else (),
            )
        )
    base = grid.output
    sweep = PreparedSweep(name=grid.base.name, output=base, points=tuple(points), metrics=grid.metrics)
    digest = hashlib.sha256(sweep.model_dump_json().encode()).hexdigest()[:16]
    uri = join(base, WORK_FOLDER, f"sweep-{digest}.json")
    storage.put_json(uri, sweep)
    return sweep, uri


def shared_tokens(grid: Grid) -> str:
    """Folder of the tokens that points of a grid share."""
    return join(grid.output, WORK_FOLDER, "tokens")


def load_sweep(uri: str) -> PreparedSweep:
    """What `prepare_points` wrote; ConfigError when it is not there."""
    sweep = storage.find_json(uri, PreparedSweep)
    if sweep is None:
        raise ConfigError(f"{uri}: no sweep here; give the URI that `staticjob sweep --prepare` printed")
    return sweep


def tabulate(sweep: PreparedSweep) -> tuple[SweepResult, str]:
    """Count every point and write the table; returns it and the URI of `sweep.json`.

    Raises DataError for a point that is not finished, or that another run has written since.
    """
    from staticjob.report.sweep import render_sweep

    points = tuple(_count(point, sweep.metrics) for point in sweep.points)
    result = SweepResult(name=sweep.name, points=points)
    storage.put(sweep_html(sweep.output), render_sweep(result, sweep.output).encode())
    uri = join(sweep.output, "sweep.json")
    storage.put_json(uri, result)
    return result, uri


def _count(point: PreparedPoint, metrics: tuple[Metric, ...]) -> PointResult:
    output = Output(point.output)
    prepared = storage.read_json(Work(point.work).job, Prepared)
    manifest = storage.find_json(output.manifest, Manifest)
    done = claim.success_of(output), manifest and manifest.fingerprint
    if manifest is None or done != (prepared.fingerprint, prepared.fingerprint):
        raise DataError(f"{point.output}: the point {point.settings} is not finished; run the sweep again")
    wanted = {"n_scored", *(READS[m.metric].column for m in metrics)}
    wanted |= {name for m in metrics for name in (m.gold, m.group_by) if name}
    rows = [row for table in _read(output, manifest, wanted) for row in table.to_pylist()]
    if metrics and prepared.config.embed.output_dtype == "binary":
        rows = [row | {"embedding": _signs(row["embedding"])} for row in rows]
    return PointResult(
        settings=point.settings,
        output=point.output,
        metrics={name: evaluate(metric, rows) for name, metric in by_name(metrics).items()},
        rows=manifest.rows,
        useful_tokens=manifest.ledger.useful,
        useful_share=manifest.ledger.useful_share,
        seconds=manifest.seconds,
        cost=manifest.cost,
    )


def _signs(packed: Sequence[int] | None) -> NDArray[np.int8] | None:
    """An embedding of output_dtype binary as numbers, 1 or -1 a component."""
    return None if packed is None else np.unpackbits(np.array(packed, np.uint8)).astype(np.int8) * 2 - 1


def _read(output: Output, manifest: Manifest, columns: set[str]) -> Iterator[pa.Table]:
    """The named columns of every output file, as far as they are there."""
    for file in manifest.files:
        with pa.BufferReader(storage.read(output.file(file.path))) as source:
            parquet = pq.ParquetFile(source)
            table = parquet.read([name for name in parquet.schema_arrow.names if name in columns])
            yield table.cast(pa.schema(_for_python(field) for field in table.schema))


def _for_python(field: pa.Field) -> pa.Field:
    """Python's times end at microseconds: those in nanoseconds, which may be groups, become whole numbers."""
    return field.with_type(pa.int64()) if getattr(field.type, "unit", None) == "ns" else field
