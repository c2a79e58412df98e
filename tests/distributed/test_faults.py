"""Faults around a running job: nothing is lost, nothing is doubled, no process is orphaned."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from airflow_runs import Run, until
from faults import Fault, Proxy

from distributed.jobs import ROWS, check_same, chunk_processes, flushed, start, start_beside
from staticjob.sandbox.airflow import AirflowSandbox
from staticjob.sandbox.store import SeaweedStore
from staticjob.status import read_status

Expected = dict[str, bytes]


def _midway(airflow: AirflowSandbox, dag_id: str) -> Run:
    """A run whose chunk has stored a part of its rows."""
    run = start(airflow, dag_id)
    run.until(lambda: run.states().get("plan") == "success", "plan")
    until(lambda: flushed(run), "a part of the chunk", pause=0.02)
    return run


def _ends_well(airflow: AirflowSandbox, run: Run, expected: Expected) -> None:
    run.succeeds()
    check_same(run, expected)
    until(lambda: chunk_processes(airflow, run) == [], "the end of the chunk's processes")


def test_a_chunk_goes_on_while_the_scheduler_is_gone(airflow: AirflowSandbox, expected: Expected) -> None:
    run = _midway(airflow, "rescheduled")
    airflow.kill_component("scheduler")
    (process,) = chunk_processes(airflow, run)
    until(lambda: not process.exists(), "the end of the chunk")
    airflow.start_component("scheduler")
    _ends_well(airflow, run, expected)
    assert [task["try_number"] for task in run.tasks("chunk")] == [1]


def test_a_chunk_waits_for_a_store_that_is_down(
    airflow: AirflowSandbox, store: SeaweedStore, expected: Expected
) -> None:
    run = _midway(airflow, "unstored")
    store.stop()
    time.sleep(30)
    store.start()
    _ends_well(airflow, run, expected)
    assert [task["try_number"] for task in run.tasks("chunk")] == [1]


def test_a_run_outlives_an_outage_of_the_api_server(airflow: AirflowSandbox, expected: Expected) -> None:
    run = _midway(airflow, "unserved")
    airflow.kill_component("api-server")
    time.sleep(8)
    airflow.start_component("api-server")
    until(lambda: not run.api.unhealthy(), "the API server")
    _ends_well(airflow, run, expected)


def test_a_chunk_that_is_cut_off_from_the_api_server_ends_and_its_next_try_goes_on(
    airflow: AirflowSandbox, proxy: Proxy, expected: Expected
) -> None:
    run = _midway(airflow, "cut_off")
    proxy.delay = 1.0  # the chunk takes minutes: longer than its supervisor tries to reach the server
    (process,) = chunk_processes(airflow, run)
    airflow.kill_component("api-server")
    try:
        until(lambda: not process.exists(), "the end of the chunk that nobody can hear")
    finally:
        airflow.start_component("api-server")
        proxy.delay = 0.0
    until(lambda: not run.api.unhealthy(), "the API server")
    _ends_well(airflow, run, expected)
    (chunk,) = run.tasks("chunk")
    assert chunk["try_number"] > 1  # each that the scheduler starts before the server is back is lost, too
    (commit,) = read_status(run.output.uri).commits
    assert 0 < commit.kept_batches < commit.batches


@pytest.fixture(scope="module")
def at_once(airflow: AirflowSandbox, proxy: Proxy) -> dict[str, Run]:
    """Runs that get on beside each other; the store is slow and throttles, and keys expire once."""
    proxy.delay = 0.1
    proxy.faults = [
        Fault("refuse", "PUT", "/slow/", times=5),
        Fault("refuse", "GET", "/slow/", times=5),
        # Looked up anew once, they are still refused: the task fails, and its next try finds good ones.
        Fault("refuse", "PUT", "/expired/.*/flush-", times=2, status=400, code="ExpiredToken"),
    ]
    runs = {name: start(airflow, name) for name in ("expired", "slow", "twice")}
    return runs | {"beside": start_beside(runs["twice"])}


def test_expired_keys_cost_a_try_and_no_row(
    airflow: AirflowSandbox, at_once: dict[str, Run], expected: Expected
) -> None:
    run = at_once["expired"]
    _ends_well(airflow, run, expected)
    assert [task["try_number"] for task in run.tasks("chunk")] == [2]
    assert "expired" in run.log("chunk", 1)


def test_a_slow_and_throttling_store_costs_no_try(
    airflow: AirflowSandbox, at_once: dict[str, Run], expected: Expected
) -> None:
    run = at_once["slow"]
    _ends_well(airflow, run, expected)
    assert {task["try_number"] for task in run.tasks()} == {1}


def test_two_runs_on_one_date_leave_one_output(
    airflow: AirflowSandbox, at_once: dict[str, Run], expected: Expected
) -> None:
    for name in ("twice", "beside"):
        _ends_well(airflow, at_once[name], expected)
    (commit,) = read_status(at_once["twice"].output.uri).commits
    assert commit.rows == ROWS


def test_a_merge_goes_on_once_a_full_disk_has_room(
    airflow: AirflowSandbox, scratch: Path, at_once: dict[str, Run], expected: Expected
) -> None:
    for other in at_once.values():
        other.ends()
    run = start(airflow, "full")
    run.until(lambda: run.states().get("plan") == "success", "plan")
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(scratch)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk that is full needs the right to mount one")
    try:
        run.until(lambda: run.states().get("merge") == "up_for_retry", "a merge without room")
    finally:
        subprocess.run(["umount", "--lazy", scratch], check=True)
    _ends_well(airflow, run, expected)
    assert "No space left" in run.log("merge", 1)
