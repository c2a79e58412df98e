"""Run named rows again, as `verify` does sampled ones, and say of each whether its bits are the published."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from staticjob.engine.shape import Shape
from staticjob.errors import ConfigError, DataError
from staticjob.layout import Work
from staticjob.models import model_files
from staticjob.nearest import nearest
from staticjob.records.plan import Chunk, Plan
from staticjob.records.prepared import Prepared
from staticjob.records.record import Record
from staticjob.running.parts import read_rows
from staticjob.verify import ROUNDING
from staticjob.verifying.again import Comparison, engine_again, run_again
from staticjob.verifying.samples import Sample, open_published, read_published, read_samples


class RowVerdict(Record):
    """One named row, run again in two batches."""

    file: str
    row: int = Field(description="row index in the output file, from 0")
    status: str = Field(description="as published")
    engine: str | None = Field(description="as published; only rows of the static engine are run again")
    bit_equal: bool | None = Field(description="None where there is no result to run again")
    differing: dict[str, float | None] = Field(
        description="columns with other bits and their largest difference; None where not finite now"
    )


class ReplayReport(Record):
    """What became of the named rows."""

    rows: tuple[RowVerdict, ...]
    device: str | None = Field(description="None where no row had a result to run again")
    dtype: str | None

    def check(self) -> None:
        """Raise DataError when a result differs by more than rounding."""
        for row in self.rows:
            for column, size in row.differing.items():
                if size is None or (self.dtype and size > ROUNDING[self.dtype]):
                    how = (
                        "not finite now" if size is None else f"by {size:.3g}, more than {self.dtype} rounds"
                    )
                    raise DataError(
                        f"verify: {row.file}:{row.row} differs in {column}, {how}; "
                        "was the output written by another model or engine?"
                    )


@dataclass(frozen=True)
class NamedRow:
    """A row by input file and index."""

    file: int
    row: int


def named_row(text: str, prepared: Prepared, plan: Plan) -> NamedRow:
    """`FILE:N`, FILE as the input or the output names it and N from 0. ConfigError where there is none."""
    path, colon, number = text.rpartition(":")
    if not colon or not number.isdecimal():
        raise ConfigError(f"--row {text}: expected FILE:N, N the row's index in the output file, from 0")
    for file in prepared.files:
        if path in (file.path, file.output):
            break
    else:
        raise ConfigError(
            f"--row {text}: no such file{nearest(path, [f.output for f in prepared.files][:20])}"
        )
    rows = plan.file_rows[file.index]
    if int(number) >= rows:
        raise ConfigError(f"--row {text}: {path} has rows 0 to {rows - 1}")
    return NamedRow(file.index, int(number))


def replay(work: Work, prepared: Prepared, plan: Plan, rows: Sequence[NamedRow]) -> ReplayReport:
    """Run the rows again, each in a full and in a half-empty batch of their own shape, and compare.

    Rows without a result of the static engine are told with their status. Raises DataError when the
    output is not there.
    """
    wanted = dict.fromkeys(rows)
    found = _find(work, plan, wanted)
    compared: dict[NamedRow, list[Comparison]] = defaultdict(list)
    again = None
    if found:
        model_dir = model_files.resolve_pinned(prepared.config.model, prepared.model)
        again = engine_again(prepared.config, model_dir, list(found))
        read_published(prepared, [s for own in found.values() for s in own], again.columns)
        rng = np.random.default_rng(0)
        for shape, own in found.items():
            usable = [sample for sample in own if sample.published]
            for one in run_again(again, shape, usable, rng):
                compared[NamedRow(one.sample.file, one.sample.row)].append(one)
    return ReplayReport(
        rows=tuple(_verdict(prepared, row, compared[row]) for row in wanted),
        device=again.device if again else None,
        dtype=again.dtype if again else None,
    )


def _find(work: Work, plan: Plan, rows: Collection[NamedRow]) -> dict[Shape, list[Sample]]:
    """The named rows that a model ran, by shape; the row records of all parts are read, no others' ids."""
    found: dict[Shape, list[Sample]] = defaultdict(list)
    for chunk in plan.chunks:
        at = _places(work, chunk, rows)
        if len(at):
            found[Shape(chunk.length, chunk.batch)] += read_samples(work, chunk, at)
    return dict(found)


def _places(
    work: Work, chunk: Chunk, rows: Collection[NamedRow]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Numbers, in the chunk, of its rows that are among `rows`."""
    records = np.concatenate([read_rows(work, span) for span in chunk.spans])
    among = np.zeros(len(records), bool)
    for row in rows:
        among |= (records["file"] == row.file) & (records["row"] == row.row)
    return np.flatnonzero(among)


def _verdict(prepared: Prepared, row: NamedRow, compared: Sequence[Comparison]) -> RowVerdict:
    status, engine = _published_outcome(prepared, row)
    differing: dict[str, float] = {}
    for one in compared:
        for column, size in one.differing.items():
            differing[column] = max(size, differing.get(column, 0.0))
    return RowVerdict(
        file=prepared.files[row.file].output,
        row=row.row,
        status=status,
        engine=engine,
        bit_equal=not differing if compared else None,
        differing={name: size if np.isfinite(size) else None for name, size in differing.items()},
    )


def _published_outcome(prepared: Prepared, row: NamedRow) -> tuple[str, str | None]:
    """Status and engine of a row of the output."""
    before = 0
    with open_published(prepared, row.file) as (uri, parquet):
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if row.row < before + rows:
                outcome = parquet.read_row_group(group, columns=["status", "engine"])
                values = outcome.slice(row.row - before, 1).to_pylist()[0]
                return values["status"], values["engine"]
            before += rows
    raise DataError(f"{uri}: {before} rows, but the plan has row {row.row}; run `staticjob run` again")
