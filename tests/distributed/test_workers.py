"""Celery workers: one chunk for each GPU worker, everything else on the CPU worker, and one of them lost."""

from __future__ import annotations

import pytest
from airflow_runs import Run, until

from distributed.jobs import check_same, chunk_processes, flushed, start
from distributed.stack import GPUS
from staticjob.sandbox.airflow import AirflowSandbox
from staticjob.status import read_status


@pytest.fixture(scope="module")
def killed(airflow: AirflowSandbox) -> Run:
    """A finished run that lost a GPU worker, killed outright, in the middle of a chunk."""
    run = start(airflow, "killed")
    run.until(lambda: run.states().get("plan") == "success", "plan")
    until(lambda: len(chunk_processes(airflow, run)) == GPUS, "two chunks at once")
    chunks = {process.env["CUDA_VISIBLE_DEVICES"]: process for process in chunk_processes(airflow, run)}
    assert set(chunks) == {"0", "1"}
    lost = chunks["0"]
    until(lambda: flushed(run, lost.pack), "a part of the chunk", pause=0.02)
    airflow.kill_component("gpu0")
    until(lambda: not lost.exists(), "the end of the chunk whose worker is gone")
    assert flushed(run, lost.pack)
    run.succeeds()
    airflow.start_component("gpu0")
    return run


def test_the_output_is_the_undisturbed_one_after_a_gpu_worker_was_killed(
    airflow: AirflowSandbox, killed: Run, expected: dict[str, bytes]
) -> None:
    check_same(killed, expected)
    assert chunk_processes(airflow, killed) == []


def test_the_other_gpu_worker_goes_on_where_the_killed_one_was(killed: Run) -> None:
    assert sorted(task["try_number"] for task in killed.tasks("chunk")) == [1, 2]
    kept = sorted(commit.kept_batches for commit in read_status(killed.output.uri).commits)
    assert kept[0] == 0 < kept[1]


def test_chunks_are_for_the_gpu_workers_and_all_else_is_for_the_cpu_worker(killed: Run) -> None:
    queues = {(task["task_id"] == "chunk", task["queue"]) for task in killed.tasks()}
    assert queues == {(True, "gpu"), (False, "cpu")}
