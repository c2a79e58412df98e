"""Verify: sampled rows beside other neighbours give the published bits, or the difference is reported."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fabricate import fabricate
from small_jobs import Planned, job, planned, texts, write_input

from staticjob import storage
from staticjob.engine.heads import HeadResult
from staticjob.engine.static_engine import StaticEngine
from staticjob.errors import ConfigError, DataError
from staticjob.merge import merge_group
from staticjob.replay import named_row, replay
from staticjob.running.pack import run_pack
from staticjob.running.progress import Reporter
from staticjob.running.watch import StopFlag
from staticjob.verify import ROUNDING, VerifyReport, choose, verify
from staticjob.verifying.again import _compare


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """A small job up to its merged output."""
    base = str(tmp_path_factory.mktemp("verify"))
    write_input(f"{base}/in", [*texts(60), None, ""])
    made = planned(job(base))
    ids = [chunk.id for chunk in made.plan.chunks]
    with Reporter(made.plan, ids) as reporter:
        run_pack(made.work, made.prepared, made.plan, ids, StopFlag(), reporter)
    for group in made.plan.groups:
        merge_group(made.work, made.prepared, made.plan, group)
    return made


def run_verify(made: Planned, rows: int = 40) -> VerifyReport:
    return verify(made.work, made.prepared, made.plan, rows, seed=3)


def tamper(made: Planned, change: float) -> None:
    """Add `change` to the first component of every row of the first output file."""
    uri = made.output.file(made.prepared.files[0].output)
    table = pq.read_table(io.BytesIO(storage.read(uri)))
    column = table["embedding"].combine_chunks()
    values = np.array(column.to_pylist(), dtype=np.float32)
    values[:, 0] += np.float32(change)
    changed = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=column.type)
    sink = io.BytesIO()
    pq.write_table(table.set_column(table.column_names.index("embedding"), "embedding", changed), sink)
    storage.put(uri, sink.getvalue())


def test_rows_beside_other_neighbours_give_the_published_bits(published: Planned) -> None:
    report = run_verify(published)
    assert report.rows == 40
    assert report.compared == 80  # each in a full batch and in a half-empty one
    assert (report.skipped, report.equal, report.max_difference) == (0, 80, 0.0)
    assert {v.length for v in report.rungs} == {r.length for r in published.plan.rungs if r.rows}
    report.check()


def test_an_output_that_differs_is_reported_and_refused_beyond_rounding(published: Planned) -> None:
    uri = published.output.file(published.prepared.files[0].output)
    data = storage.read(uri)
    try:
        tamper(published, 1e-6)
        slight = run_verify(published)
        tamper(published, 0.5)
        gross = run_verify(published)
    finally:
        storage.put(uri, data)
    assert not slight.bit_equal
    assert slight.within_rounding
    assert 0 < slight.equal < slight.compared
    slight.check()
    assert gross.max_difference == pytest.approx(0.5, abs=1e-4)
    with pytest.raises(DataError, match=r"results differ, by up to 0\.5"):
        gross.check()


def test_a_named_row_is_run_again_and_told_by_its_columns_that_differ(published: Planned) -> None:
    def named(*names: str) -> dict[str, tuple[str, bool | None, list[str]]]:
        rows = [named_row(name, published.prepared, published.plan) for name in names]
        report = replay(published.work, published.prepared, published.plan, rows)
        report.check()
        return {f"{r.file}:{r.row}": (r.status, r.bit_equal, list(r.differing)) for r in report.rows}

    uri = published.output.file(published.prepared.files[0].output)
    data = storage.read(uri)
    try:
        tamper(published, 1e-6)
        # The last two rows of the second file are null and empty.
        assert named("p0.parquet:0", "p1.jsonl.gz:2", "p1.parquet:29") == {
            "p0.parquet:0": ("ok", False, ["embedding"]),
            "p1.parquet:2": ("ok", True, []),
            "p1.parquet:29": ("null", None, []),
        }
        tamper(published, 0.5)
        with pytest.raises(DataError, match=r"p0.parquet:0 differs in embedding, by 0\.5, more than float32"):
            named("p0.parquet:0")
    finally:
        storage.put(uri, data)


@pytest.mark.parametrize("number", [-300.0, 1e6, 0.5])
def test_the_next_float_is_no_more_than_rounding_however_large_the_number(number: float) -> None:
    old = np.float32(number)
    equal, size = _compare(np.nextafter(old, np.float32(0)), old)
    assert not equal
    assert 0 < size < ROUNDING["float32"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("p0.parquet", "expected FILE:N"),
        ("p0.parquet:-1", "expected FILE:N"),
        ("p0.parqet:1", r"no such file; did you mean 'p0.parquet'\?"),
        ("p0.parquet:31", "p0.parquet has rows 0 to 30"),
    ],
)
def test_a_named_row_that_is_not_there_is_refused(published: Planned, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--row {name}: {message}"):
        named_row(name, published.prepared, published.plan)


def lose(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Have the engine's `method` give no row a finite result."""
    real = getattr(StaticEngine, method)

    def lost(*args: object) -> HeadResult:
        result = real(*args)
        columns = {name: np.full_like(values, np.nan) for name, values in result.columns.items()}
        return HeadResult(columns, np.zeros_like(result.finite))

    monkeypatch.setattr(StaticEngine, method, lost)


def test_a_row_that_is_not_finite_is_computed_again_as_the_run_does_and_compared(
    published: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(monkeypatch, "run")
    report = run_verify(published, 8)
    assert (report.compared, report.skipped, report.not_finite) == (16, 0, 0)
    assert report.within_rounding
    assert report.max_difference > 0


def test_a_published_row_that_is_never_finite_again_is_refused(
    published: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("run", "recompute_float32"):
        lose(monkeypatch, method)
    report = run_verify(published, 8)
    assert (report.compared, report.equal, report.not_finite, report.bit_equal) == (16, 0, 16, False)
    with pytest.raises(DataError, match="16 of 16 results differ, 16 of them not finite now"):
        report.check()


def test_verify_before_merge_names_the_file_that_is_missing(published: Planned) -> None:
    uri = published.output.file(published.prepared.files[0].output)
    data = storage.read(uri)
    storage.delete([uri])
    try:
        with pytest.raises(DataError, match=r"p0.parquet: not published yet"):
            run_verify(published)
    finally:
        storage.put(uri, data)


@pytest.mark.parametrize("rows", [1, 2, 30, 10_000])
def test_a_sample_names_distinct_rows_and_reaches_every_rung(tmp_path: Path, rows: int) -> None:
    plan = fabricate(tmp_path).plan
    short = [c.model_copy(update={"id": f"x{c.id}", "length": 32}) for c in plan.chunks[:2]]
    rung = plan.rungs[0].model_copy(update={"length": 32, "rows": sum(c.rows for c in short)})
    plan = plan.model_copy(update={"chunks": (*plan.chunks, *short), "rungs": (*plan.rungs, rung)})
    chosen = choose(plan, rows, np.random.default_rng(0))
    picked = [(chunk.id, int(row)) for own in chosen.values() for chunk, at in own for row in at]
    assert len(set(picked)) == len(picked) == min(rows, sum(r.rows for r in plan.rungs))
    sizes = {c.id: c.rows for c in plan.chunks}
    assert all(0 <= row < sizes[chunk] for chunk, row in picked)
    assert len(chosen) == min(rows, 2)
