"""Run sampled rows again beside other neighbours and compare bits with what was published.

A row's result must not depend on who shares its batch or where in the batch it stands. This
measures it: every sampled row is run twice in its own shape, once in a full batch of sampled
rows in random order, once in a half-empty batch with dummy rows in between.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from staticjob import storage, tasks
from staticjob.config import JobConfig
from staticjob.errors import DataError
from staticjob.layout import Output, Work
from staticjob.models import model_files
from staticjob.record import Record
from staticjob.records import WITH_RESULT, Chunk, Plan, Prepared
from staticjob.running.finite import make_finite
from staticjob.running.parts import read_ids, read_rows
from staticjob.running.results import vectors

if TYPE_CHECKING:
    from staticjob.engine import HeadResult, Shape

# Largest difference of a component that rounding explains, by the type the model ran in.
ROUNDING = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}


class RungVerdict(Record):
    """Sampled rows of one rung."""

    length: int
    batch: int
    rows: int
    compared: int = Field(description="results compared: each row that can be, in two batches")
    equal: int = Field(description="of these, bit-equal to the published one")
    not_finite: int = Field(description="of those compared, results that came out not finite now")
    max_difference: float = Field(description="largest absolute difference of a component, where finite")


class VerifyReport(Record):
    """What verify saw."""

    rows: int = Field(description="rows sampled")
    skipped: int = Field(description="of these, rows without a published result, or with one of vLLM")
    compared: int
    equal: int
    not_finite: int = Field(description="of those compared, results that came out not finite now")
    max_difference: float
    bit_equal: bool
    within_rounding: bool
    device: str
    dtype: str
    rungs: tuple[RungVerdict, ...]

    def check(self) -> None:
        """Raise DataError when a result differs by more than rounding."""
        if self.within_rounding:
            return
        if self.not_finite:
            how = f"{self.not_finite} of them not finite now"
        else:
            explained = ROUNDING[self.dtype]
            how = f"by up to {self.max_difference:.3g} where {self.dtype} rounding explains {explained:.3g}"
        raise DataError(
            f"verify: {self.compared - self.equal} of {self.compared} results differ, {how}; "
            "was the output written by another model or engine?"
        )


@dataclass(frozen=True)
class Sample:
    """One planned row with its tokens, and its published result once that is read."""

    file: int
    row: int
    item: int
    boundary: int
    ids: NDArray[np.int32]
    published: dict[str, NDArray[Any]] = field(default_factory=dict)


def verify(work: Work, prepared: Prepared, plan: Plan, rows: int, seed: int) -> VerifyReport:
    """Sample about `rows` rows of all rungs, run them again and compare.

    Rows without a result or answered by another engine are counted as skipped. One that the run computed
    again in float32, for it was not finite, is compared with the same done again.
    Raises DataError when the output is not there or holds another number of rows.
    """
    from staticjob.engine import Shape

    rng = np.random.default_rng(seed)
    samples = {
        (length, batch): [s for chunk, at in picked for s in read_samples(work, chunk, at)]
        for (length, batch), picked in choose(plan, rows, rng).items()
    }
    model_dir = model_files.resolve_pinned(prepared.config.model, prepared.model)
    again = engine_again(prepared.config, model_dir, [Shape(length, batch) for length, batch in samples])
    read_published(prepared, [s for own in samples.values() for s in own], again.columns)
    verdicts = []
    skipped = 0
    for (length, batch), own in samples.items():
        usable = [s for s in own if s.published]
        skipped += len(own) - len(usable)
        compared_rows = list(run_again(again, length, batch, usable, rng))
        verdicts.append(
            RungVerdict(
                length=length,
                batch=batch,
                rows=len(own),
                compared=len(compared_rows),
                equal=sum(row.equal for row in compared_rows),
                not_finite=sum(math.isinf(row.difference) for row in compared_rows),
                max_difference=max(
                    (row.difference for row in compared_rows if math.isfinite(row.difference)), default=0.0
                ),
            )
        )
    compared, equal = sum(v.compared for v in verdicts), sum(v.equal for v in verdicts)
    not_finite = sum(v.not_finite for v in verdicts)
    largest = max((v.max_difference for v in verdicts), default=0.0)
    return VerifyReport(
        rows=sum(v.rows for v in verdicts),
        skipped=skipped,
        compared=compared,
        equal=equal,
        not_finite=not_finite,
        max_difference=largest,
        bit_equal=compared == equal,
        within_rounding=not not_finite and largest <= ROUNDING[again.dtype],
        device=again.device,
        dtype=again.dtype,
        rungs=tuple(verdicts),
    )


# Who stands at each place of a batch; None for a dummy row.
Standing = Sequence[Sample | None]


class Again(Protocol):
    """What runs rows again."""

    device: str
    dtype: str

    @property
    def columns(self) -> Sequence[str]: ...

    def run(
        self,
        shape: Shape,
        ids: NDArray[np.int32],
        lengths: NDArray[np.int32],
        samples: Standing,
    ) -> HeadResult:
        """ids [B, L], lengths [B] (0 for a dummy row), and who stands at each place [B]."""


def engine_again(config: JobConfig, model_dir: Path, shapes: Sequence[Shape]) -> Again:
    # Deferred: torch.
    if tasks.TASKS[config.task].generates:
        from staticjob.generating.verify_texts import TextsAgain

        return TextsAgain(model_dir, config, shapes)
    return _HeadsAgain(model_dir, config, shapes)


class _HeadsAgain:
    """The engine of a task with one pass a row."""

    def __init__(self, model_dir: Path, config: JobConfig, shapes: Sequence[Shape]) -> None:
        from staticjob.engine import StaticEngine

        self._engine = StaticEngine(model_dir, config, shapes)
        self.device, self.dtype = self._engine.device, self._engine.dtype
        self.columns = [field.name for field in self._engine.fields()]

    def run(
        self,
        shape: Shape,
        ids: NDArray[np.int32],
        lengths: NDArray[np.int32],
        samples: Standing,
    ) -> HeadResult:
        boundaries = np.array([-1 if s is None else s.boundary for s in samples], np.int32)
        result = self._engine.run(shape, ids, lengths, boundaries)
        return make_finite(self._engine, result, ids, lengths, boundaries)


def choose(
    plan: Plan, rows: int, rng: np.random.Generator
) -> dict[tuple[int, int], list[tuple[Chunk, NDArray[np.int64]]]]:
    """Rows to sample as (chunk, ascending row numbers in it), by shape (length, batch).

    Every rung has one where `rows` allows it, the others fall by each rung's share of rows.
    """
    sizes = np.array([rung.rows for rung in plan.rungs], dtype=np.int64)
    wanted = min(rows, int(sizes.sum()))
    quota = np.zeros_like(sizes)
    occupied = np.flatnonzero(sizes)
    quota[rng.permutation(occupied)[:wanted]] = 1
    quota += rng.multivariate_hypergeometric(sizes - quota, wanted - int(quota.sum()), method="marginals")
    chosen: dict[tuple[int, int], list[tuple[Chunk, NDArray[np.int64]]]] = {}
    for rung, count in zip(plan.rungs, quota, strict=True):
        if not count:
            continue
        chunks = [c for c in plan.chunks if (c.length, c.batch) == (rung.length, rung.batch)]
        ends = np.cumsum([c.rows for c in chunks])
        at = np.sort(rng.choice(rung.rows, int(count), replace=False))
        owner = np.searchsorted(ends, at, side="right")
        chosen[rung.length, rung.batch] = [
            (chunks[i], at[owner == i] - (ends[i] - chunks[i].rows)) for i in np.unique(owner)
        ]
    return chosen


def read_samples(work: Work, chunk: Chunk, at: NDArray[np.int64]) -> Iterator[Sample]:
    """The chunk's rows with these numbers: all row records of the spans, the ids of these alone."""
    first = 0
    for span in chunk.spans:
        n = span.stop - span.start
        own = at[(at >= first) & (at < first + n)] - first
        first += n
        if not len(own):
            continue
        records = read_rows(work, span)
        ends = span.token_start + np.cumsum(records["length"], dtype=np.int64)
        for i in own:
            record = records[i]
            length = int(record["length"])
            ids = read_ids(work, span.part, int(ends[i]) - length, length)
            file, row, item, boundary = (int(record[name]) for name in ("file", "row", "item", "boundary"))
            yield Sample(file, row, item, boundary, ids)


def read_published(prepared: Prepared, samples: Sequence[Sample], heads: Sequence[str]) -> None:
    """Fill in the published head columns of every row that the static engine answered."""
    output = Output(prepared.config.output.uri)
    by_file: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_file[sample.file].append(sample)
    for file, own in by_file.items():
        uri = output.file(prepared.files[file].output)
        pin = storage.head(uri)
        if pin is None:
            raise DataError(f"{uri}: not published yet; verify compares with a merged output")
        with pq.ParquetFile(pa.PythonFile(storage.open_pinned(pin), "r")) as parquet:
            _read_groups(uri, parquet, sorted(own, key=lambda s: s.row), heads, prepared.config.lists)


def _read_groups(
    uri: str, parquet: pq.ParquetFile, samples: Sequence[Sample], heads: Sequence[str], lists: bool
) -> None:
    """Read the row groups that hold `samples` (ascending rows), head columns and outcome alone.

    lists: a head's results are the elements of a column of lists, named with an s.
    """
    columns = {name: f"{name}s" if lists else name for name in heads}
    metadata = parquet.metadata
    ends = np.cumsum([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
    if samples[-1].row >= metadata.num_rows:
        raise DataError(f"{uri}: {metadata.num_rows} rows, but the plan has row {samples[-1].row}")
    by_group: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_group[int(np.searchsorted(ends, sample.row, side="right"))].append(sample)
    for group, own in by_group.items():
        table = parquet.read_row_group(
            group, columns=[*columns.values(), "status", "engine"]
        ).combine_chunks()
        start = int(ends[group]) - metadata.row_group(group).num_rows
        values = {name: _values(table[column].chunk(0)) for name, column in columns.items()}
        for sample in own:
            i = sample.row - start
            if table["status"][i].as_py() in WITH_RESULT and table["engine"][i].as_py() == "static":
                found = {name: values[name][i] for name in heads}
                sample.published.update({n: v[sample.item] for n, v in found.items()} if lists else found)


@dataclass(frozen=True)
class Comparison:
    """One row run again. differing: columns with other bits, and the largest difference of a number."""

    sample: Sample
    differing: dict[str, float]

    @property
    def equal(self) -> bool:
        return not self.differing

    @property
    def difference(self) -> float:
        """Infinite where the row is not finite now."""
        return max(self.differing.values(), default=0.0)


def run_again(
    again: Again, length: int, batch: int, samples: Sequence[Sample], rng: np.random.Generator
) -> Iterator[Comparison]:
    """Each row compared twice: run in full batches, and in half-empty ones, at random places.

    A row that comes out not finite, in float32 neither, differs infinitely in all its columns.
    """
    from staticjob.engine import Shape

    for members in (batch, max(1, batch // 2)):
        order = rng.permutation(len(samples))
        for begin in range(0, len(samples), members):
            group = [samples[i] for i in order[begin : begin + members]]
            places = rng.choice(batch, len(group), replace=False)
            ids = np.zeros((batch, length), np.int32)
            lengths = np.zeros(batch, np.int32)
            standing: list[Sample | None] = [None] * batch
            for place, sample in zip(places, group, strict=True):
                ids[place, : len(sample.ids)] = sample.ids
                lengths[place] = len(sample.ids)
                standing[place] = sample
            result = again.run(Shape(length, batch), ids, lengths, standing)
            for place, sample in zip(places, group, strict=True):
                if not result.finite[place]:  # the published one was
                    yield Comparison(sample, dict.fromkeys(sample.published, math.inf))
                    continue
                new = {name: result.columns[name][place] for name in sample.published}
                compared = {name: _compare(new[name], old) for name, old in sample.published.items()}
                yield Comparison(
                    sample, {name: size for name, (equal, size) in compared.items() if not equal}
                )


def _values(column: pa.Array) -> NDArray[Any]:
    """Results [n], or [n, D] where each is D numbers."""
    if pa.types.is_fixed_size_list(column.type):
        return vectors(column)
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        column = column.fill_null(pa.scalar(0).cast(column.type))  # nulls would make the numbers floats
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def _compare(new: Any, old: Any) -> tuple[bool, float]:
    """Whether two results are equal to the bit, and the largest difference of a number; labels have none."""
    if isinstance(new, str | list):
        return list(new) == list(old), 0.0
    difference = np.abs(np.asarray(new, np.float64) - np.asarray(old, np.float64)).max()
    return np.asarray(new).tobytes() == np.asarray(old).tobytes(), float(difference)
