"""A chunk is resumed where it stopped, committed once, and accounts for every slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_jobs import Planned, job, planned, texts, write_input

from staticjob import chunk as chunk_module
from staticjob import storage
from staticjob.chunk import ChunkRun, Worker, read_kept
from staticjob.engine.heads import HeadResult
from staticjob.engine.shape import Shape
from staticjob.engine.static_engine import StaticEngine
from staticjob.errors import InfrastructureError, Stopped
from staticjob.ledger import Ledger, batch_ledger
from staticjob.models import model_files
from staticjob.records.commit import Commit, Progress
from staticjob.records.plan import Chunk
from staticjob.running import results, standing
from staticjob.running.assemble import HostBatch, batches
from staticjob.running.progress import Reporter
from staticjob.running.watch import StopFlag


@pytest.fixture
def small(tmp_path: Path) -> Planned:
    write_input(str(tmp_path / "in"), texts(160))
    return planned(job(str(tmp_path), batching={"chunk_slots": 100_000}))


@pytest.fixture(scope="module")
def engine() -> StaticEngine:
    """One engine for all tests of this file, with every shape of the small job's ladder."""
    config = job("unused")
    shapes = [Shape(128, 4), Shape(64, 8), Shape(32, 16)]
    return StaticEngine(model_files.resolve(config.model), config, shapes)


class FailingEngine:
    """A real engine that breaks down before its n-th batch, as a device that falls off the bus."""

    def __init__(self, engine: StaticEngine, batches_before: int) -> None:
        self._engine = engine
        self._left = batches_before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def stream(
        self, batches: Iterable[HostBatch]
    ) -> Generator[tuple[HostBatch, HeadResult, float], None, None]:
        for computed in self._engine.stream(batches):
            if self._left == 0:
                raise InfrastructureError("the device is gone")
            self._left -= 1
            yield computed


def run(small: Planned, chunk: Chunk, engine: Any, stop: StopFlag | None = None) -> Commit:
    worker = Worker(engine, stop or StopFlag(), Reporter(small.plan, [chunk.id]))
    return ChunkRun(small.work, small.prepared.files, chunk, worker).run(0.0)


def longest_chunk(small: Planned) -> Chunk:
    return max(small.plan.chunks, key=lambda c: c.batches)


def rows_of(small: Planned, commit: Commit) -> list[dict[str, Any]]:
    return results.from_ipc(storage.read(small.work.chunk(commit.chunk, commit.result))).to_pylist()


def test_a_broken_chunk_goes_on_at_its_first_unflushed_batch(
    small: Planned, engine: StaticEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant 4: run again = resume."""
    caplog.set_level("INFO")
    chunk = longest_chunk(small)
    assert chunk.batches >= 4
    undisturbed = rows_of(small, run(small, chunk, engine))
    storage.delete(item.uri for item in storage.list_objects(small.work.chunk(chunk.id)))

    monkeypatch.setattr(chunk_module, "FLUSH_ROWS", 2 * chunk.batch)
    with pytest.raises(InfrastructureError, match="device is gone"):
        run(small, chunk, FailingEngine(engine, 3))
    assert storage.read_json(small.work.progress(chunk.id), Progress).state == "failed"
    assert read_kept(small.work, chunk).batches == 2, "the third batch was computed but not flushed"

    computed: list[int] = []
    monkeypatch.setattr(
        chunk_module, "batches", lambda work, c, first: _recorded(batches(work, c, first), computed)
    )
    commit = run(small, chunk, engine)
    assert computed == list(range(2, chunk.batches))
    assert commit.kept_batches == 2
    assert f"2 of {chunk.batches} batches kept from an earlier try" in caplog.text
    assert rows_of(small, commit) == undisturbed
    assert commit.ledger == chunk.ledger
    assert not [o for o in storage.list_objects(small.work.chunk(chunk.id)) if "flush" in o.uri]


def _recorded(source: Any, seen: list[int]) -> Any:
    for batch in source:
        seen.append(batch.index)
        yield batch


def test_flushes_of_two_tries_that_overlap_double_no_row(
    small: Planned, engine: StaticEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = longest_chunk(small)
    for rows, broken_after in ((2, 3), (3, 4)):
        monkeypatch.setattr(chunk_module, "FLUSH_ROWS", rows * chunk.batch)
        monkeypatch.setattr(chunk_module, "read_kept", lambda work, c: chunk_module.Kept(0, ()))
        with pytest.raises(InfrastructureError):
            run(small, chunk, FailingEngine(engine, broken_after))
    monkeypatch.setattr(chunk_module, "read_kept", read_kept)
    assert read_kept(small.work, chunk).batches == 3
    commit = run(small, chunk, engine)
    assert commit.kept_batches == 3
    found = rows_of(small, commit)
    assert len({(r["file"], r["row"]) for r in found}) == len(found) == chunk.rows


def test_two_workers_on_one_chunk_leave_one_valid_result(
    small: Planned, engine: StaticEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 5: the commit marker is put if absent, after its data."""
    chunk = longest_chunk(small)
    write = results.write_result
    other: list[Commit] = []

    def overtaken(uri: str, table: Any) -> Any:
        written = write(uri, table)
        if not other:
            other.append(None)  # type: ignore[arg-type]
            other[0] = run(small, chunk, engine)
        return written

    monkeypatch.setattr(results, "write_result", overtaken)
    commit = run(small, chunk, engine)
    assert commit == other[0], "the slower worker takes the faster one's commit"
    names = [o.uri.rsplit("/", 1)[1] for o in storage.list_objects(small.work.chunk(chunk.id))]
    assert sorted(names) == sorted(["commit.json", "progress.json", commit.result])
    assert len(rows_of(small, commit)) == chunk.rows


def test_a_stop_request_flushes_and_ends_between_batches(small: Planned, engine: StaticEngine) -> None:
    chunk = longest_chunk(small)
    stop = StopFlag()
    stop.signal = 15
    with pytest.raises(Stopped, match="SIGTERM"):
        run(small, chunk, engine, stop)
    assert read_kept(small.work, chunk).batches == 1
    assert storage.read_json(small.work.progress(chunk.id), Progress).state == "stopped"


def test_a_late_heartbeat_does_not_hide_how_a_chunk_ended(
    small: Planned, engine: StaticEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = longest_chunk(small)
    put = storage.put_json

    def slow_in_threads(uri: str, record: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.5)
        put(uri, record)

    @contextmanager
    def one_beat(beat: Callable[[], None]) -> Iterator[None]:
        thread = threading.Thread(target=beat)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    monkeypatch.setattr(storage, "put_json", slow_in_threads)
    monkeypatch.setattr(standing, "heartbeat", one_beat)
    with pytest.raises(InfrastructureError, match="device is gone"):
        run(small, chunk, FailingEngine(engine, 0))
    assert storage.read_json(small.work.progress(chunk.id), Progress).state == "failed"


def test_the_ledger_of_every_chunk_is_the_plans_and_sums(small: Planned, engine: StaticEngine) -> None:
    """Invariant 8."""
    commits = [run(small, chunk, engine) for chunk in small.plan.chunks]
    assert [c.ledger for c in commits] == [c.ledger for c in small.plan.chunks]
    assert sum((c.ledger for c in commits), Ledger()) == small.plan.ledger


def test_only_planned_shapes_are_run_and_the_last_batch_is_filled_with_dummies(small: Planned) -> None:
    """Invariant 6."""
    planned_shapes = {(rung.batch, rung.length) for rung in small.plan.rungs}
    dummies = 0
    for chunk in small.plan.chunks:
        for batch in batches(small.work, chunk):
            assert batch.ids.shape in planned_shapes
            assert batch.ids.shape == (chunk.batch, chunk.length)
            assert (batch.lengths[len(batch.rows) :] == 0).all()
            dummies += (chunk.batch - len(batch.rows)) * chunk.length
    assert dummies == small.plan.ledger.dummy > 0


def test_a_batch_accounts_for_useful_padding_and_dummy_slots() -> None:
    import numpy as np

    ledger = batch_ledger(np.array([5, 3], np.int32), length=8, batch=4)
    assert ledger == Ledger(useful=8, padding=8, dummy=16, slots=32)
