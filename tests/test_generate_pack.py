"""Many generating chunks in one process: what is held, what a stop or a failure leaves, what is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from tiny_jobs import job, prompts, read_output, save, token, write

from staticjob import steps, storage
from staticjob.config.job import JobConfig
from staticjob.errors import InfrastructureError, Stopped
from staticjob.generating import generate_pack
from staticjob.generating.fallback import TailRequest, TailResult
from staticjob.generating.generate_chunk import GenerateChunk
from staticjob.generating.tail_policy import TailPolicy
from staticjob.generating.text_rows import PromptBatch, Tail, TextRow
from staticjob.generating.text_store import TextStore
from staticjob.local_run import run_job
from staticjob.prepare import prepare
from staticjob.records.commit import Commit, Progress
from staticjob.records.plan import Chunk
from staticjob.running.commit import committed
from staticjob.running.pack import run_pack
from staticjob.running.progress import Reporter
from staticjob.running.watch import StopFlag

ROWS = 48
CAP = 12
# Two batches a chunk.
SMALL = {"chunk_slots": 176 * 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save("llama_wide", tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="module")
def texts():
    return prompts(ROWS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, model, texts) -> list[list[int]]:
    """Every row's tokens from an undisturbed run."""
    config = planned_job(tmp_path_factory.mktemp("whole"), model, texts, batching={"chunk_slots": 10**6})
    run_job(config)
    return [row["token_ids"] for row in read_output(config.output.uri)]


class Pack:
    """A planned job whose chunks all run in one process."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.work, self.prepared, _ = prepare(config)
        steps.tokenize(self.work, self.prepared, [split.id for split in self.prepared.splits])
        self.plan, _ = steps.plan(self.work, self.prepared)

    def run(self, stop: StopFlag) -> list[Commit]:
        ids = [chunk.id for chunk in self.plan.chunks]
        with Reporter(self.plan, ids) as reporter:
            return list(run_pack(self.work, self.prepared, self.plan, ids, stop, reporter).commits)

    def shown(self, chunk: Chunk) -> Progress | None:
        return storage.find_json(self.work.progress(chunk.id), Progress)

    def finish(self) -> list[dict[str, Any]]:
        """The output, after the job was run to its end."""
        run_job(self.config)
        return read_output(self.config.output.uri)


@pytest.fixture
def pack(tmp_path, model, texts) -> Pack:
    return Pack(planned_job(tmp_path, model, texts))


def planned_job(folder: Path, model: Path, texts: Sequence[str], **sections: Any) -> JobConfig:
    write(f"{folder}/in", [{"id": i, "prompt": text} for i, text in enumerate(texts)])
    return job(str(folder), model, **{"batching": SMALL, **sections})


@pytest.fixture
def stop() -> Iterator[StopFlag]:
    with StopFlag() as flag:
        yield flag


class HalfLeave(TailPolicy):
    """In the longer rung a chunk's first batch hands over after four passes, its second never begins."""

    def begin(self, index: int, rows: int) -> bool:
        return super().begin(index, rows) and not (self.scope.prompt == 32 and index == 1)

    def look(self, index: int, step: int, curve: Sequence[int], seconds: float) -> bool:
        super().look(index, step, curve, seconds)
        return self.scope.prompt == 32 and step >= 4


class Continued:
    """Stands in for vLLM: goes on as the undisturbed run did."""

    known: dict[tuple[int, ...], list[int]]  # by prompt
    at: Callable[[int], None]  # called with how many rows it has finished
    finished: list[int]  # rows finished per call

    def __init__(self, settings: object) -> None:
        self.start_seconds = 0.0

    def __enter__(self) -> Continued:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, requests: Sequence[TailRequest], tick: Callable[[], None]) -> Iterator[TailResult]:
        self.finished.append(0)
        for request in requests:
            self.at(sum(self.finished))
            tick()
            prompt = request.tokens[: len(request.tokens) - request.generated]
            self.finished[-1] += 1
            yield TailResult(request.id, tuple(self.known[prompt][request.generated :]), "length", ())

    def rates(self) -> None:
        return None


@pytest.fixture
def vllm(texts, whole, monkeypatch) -> type[Continued]:
    """Rows of the longer rung go to a stand-in for vLLM."""
    known = {tuple(token(c) for c in text): tokens for text, tokens in zip(texts, whole, strict=True)}
    stand_in = type("StandIn", (Continued,), {"known": known, "at": lambda self, n: None, "finished": []})
    monkeypatch.setattr(generate_pack, "Vllm", stand_in)
    monkeypatch.setattr(generate_pack, "TailPolicy", HalfLeave)
    return stand_in


@pytest.fixture
def held(monkeypatch) -> WeakSet[Any]:
    """Rows and rectangles that somebody holds."""
    made: WeakSet[Any] = WeakSet()

    def watch(kind: type) -> None:
        init = kind.__init__

        def noted(self: Any, *args: Any, **named: Any) -> None:
            init(self, *args, **named)
            made.add(self)

        monkeypatch.setattr(kind, "__init__", noted)

    for kind in (TextRow, Tail, PromptBatch):
        watch(kind)
    return made


def assert_whole(rows: list[dict[str, Any]], whole: list[list[int]]) -> None:
    assert [row["id"] for row in rows] == list(range(ROWS))
    assert [row["token_ids"] for row in rows] == whole


def test_a_pack_holds_the_rows_of_one_chunk_however_many_it_runs(pack, stop, vllm, held, monkeypatch):
    after, waiting = [], []
    monkeypatch.setattr(Reporter, "committed", lambda self, commit: after.append(len(held)))
    vllm.at = lambda self, n: waiting.append(len(held)) if n == 0 else None
    commits = pack.run(stop)
    assert len(commits) >= 6
    assert sum(c.generation.vllm.rows + c.generation.vllm.tails for c in commits) > 20
    largest = max(c.rows for c in commits)
    assert max(after) <= 2 * largest
    assert waiting[0] <= 2 * largest  # vLLM begins with the tails of one chunk


def test_a_chunk_is_committed_before_the_next_is_looked_at(pack, stop, monkeypatch):
    resume, seen = GenerateChunk.resume, []

    def look(self):
        seen.append([bool(committed(pack.work, chunk)) for chunk in pack.plan.chunks])
        resume(self)

    monkeypatch.setattr(GenerateChunk, "resume", look)
    pack.run(stop)
    count = len(pack.plan.chunks)
    assert seen == [[i < number for i in range(count)] for number in range(count)]


def test_a_stop_stores_what_is_finished_and_the_next_try_goes_on_from_there(
    tmp_path, model, texts, whole, stop, monkeypatch
):
    pack = Pack(planned_job(tmp_path, model, texts, batching={"chunk_slots": 10**6}))
    told, made = Reporter.texts, []

    def ask(self, rows, tokens, kept=False):
        told(self, rows, tokens, kept)
        made.append(rows)
        if sum(made) >= 8:
            stop.signal = 15

    with monkeypatch.context() as asking:
        asking.setattr(Reporter, "texts", ask)
        with pytest.raises(Stopped, match="SIGTERM"):
            pack.run(stop)
    chunk = pack.plan.chunks[0]
    store = TextStore(pack.work, chunk, 1)
    store.resume()
    assert 8 <= store.done == sum(made) < chunk.rows
    assert store.handed_over == 0  # the job is static: batches under way run again
    shown = pack.shown(chunk)
    assert (shown.state, shown.rows_done) == ("stopped", store.done)
    assert_whole(pack.finish(), whole)
    assert committed(pack.work, chunk).kept_batches == len(store.curves)


def test_a_stop_hands_over_the_rows_under_way_where_vllm_is_to_start_anyway(
    pack, whole, stop, vllm, monkeypatch
):
    class Stops(HalfLeave):
        def look(self, index, step, curve, seconds):
            if self.scope.prompt == 16 and step == 3:
                stop.signal = 15
            return super().look(index, step, curve, seconds)

    with monkeypatch.context() as stopping:
        stopping.setattr(generate_pack, "TailPolicy", Stops)
        with pytest.raises(Stopped):
            pack.run(stop)
    chunk = next(chunk for chunk in pack.plan.chunks if chunk.length == 16)
    store = TextStore(pack.work, chunk, 1)
    store.resume()
    assert store.handed_over > 0
    lengths = {len(tail.tokens) for tail in store.read().tails.values()}
    assert 4 in lengths, "the batch that was at step 3"
    assert lengths <= set(range(1, 7)), "the other lane's, wherever it was"
    assert_whole(pack.finish(), whole)


def test_a_stop_while_vllm_runs_keeps_its_rows_and_counts_them_in_the_end(pack, whole, stop, vllm):
    def ask(self, n: int) -> None:
        if n == 3:
            stop.signal = 15

    vllm.at = ask
    with pytest.raises(Stopped):
        pack.run(stop)
    assert vllm.finished == [3]
    vllm.at = lambda self, n: None
    assert_whole(pack.finish(), whole)
    done = [committed(pack.work, chunk).generation for chunk in pack.plan.chunks]
    left = [sum(outcome.curve.handovers.values()) for outcome in done]
    assert [outcome.vllm.tails for outcome in done] == left
    assert sum(vllm.finished) == sum(outcome.vllm.tails + outcome.vllm.rows for outcome in done)
    assert sum(outcome.vllm.generated for outcome in done) == sum(
        CAP * outcome.vllm.rows + (CAP - 5) * outcome.vllm.tails for outcome in done
    )


def test_what_a_vllm_finished_before_it_failed_for_good_is_kept(pack, whole, stop, vllm):
    def fail(self, n: int) -> None:
        if n == 3:
            raise InfrastructureError("vLLM failed 3 times")

    vllm.at = fail
    with pytest.raises(InfrastructureError, match="3 times"):
        pack.run(stop)
    vllm.at = lambda self, n: None
    assert_whole(pack.finish(), whole)
    done = [committed(pack.work, chunk).generation.vllm for chunk in pack.plan.chunks]
    assert sum(vllm.finished) == sum(work.tails + work.rows for work in done)


def test_a_failure_is_shown_of_its_own_chunk_and_of_no_other(pack, stop, monkeypatch):
    resume, seen = TextStore.resume, []

    def fail(self):
        seen.append(1)
        if len(seen) == 3:
            raise OSError("the machine is gone")
        resume(self)

    monkeypatch.setattr(TextStore, "resume", fail)
    with pytest.raises(OSError, match="machine is gone"):
        pack.run(stop)
    shown = [pack.shown(chunk) for chunk in pack.plan.chunks]
    assert [progress and progress.state for progress in shown[:4]] == ["done", "done", "failed", None]
    assert "machine is gone" in shown[2].reason


def test_a_chunk_that_another_worker_commits_meanwhile_is_theirs(pack, whole, stop, vllm):
    other = []

    def overtake(self, n: int) -> None:
        if n == 0 and not other:
            other.append(True)
            other.extend(pack.run(stop))

    vllm.at = overtake
    commits = pack.run(stop)
    assert commits == other[1:]
    assert_whole(pack.finish(), whole)
