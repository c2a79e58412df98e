"""Faults around a running job: nothing is lost, nothing is doubled, no process is orphaned."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from airflow_runs import Run, until
from faults import Fault, Proxy

from distributed.jobs import (
    OVERRIDE,
    ROWS,
    check_same,
    chunk_processes,
    flushed,
    start,
    start_beside,
    undisturbed,
)
from staticjob import claim, storage
from staticjob.layout import Output, Work
from staticjob.records.output import Manifest
from staticjob.records.prepared import Prepared
from staticjob.report.data import Report
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
    runs = {name: start(airflow, name) for name in ("contested", "expired", "slow", "twice")}
    runs["beside"] = start_beside(runs["twice"])
    runs["overriding"] = start_beside(runs["contested"], OVERRIDE)
    return runs


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


@dataclass(frozen=True)
class Contest:
    """Two runs of one date at the same time that have other settings, and what each makes when alone."""

    winner: Run
    loser: Run
    expected: dict[Run, Expected]


@pytest.fixture(scope="module")
def contest(at_once: dict[str, Run], jobs: Path, expected: Expected) -> Contest:
    """A contest that has ended."""
    one, other = at_once["contested"], at_once["overriding"]
    alone = {one: expected, other: undisturbed(jobs, OVERRIDE)}
    assert alone[one] != alone[other]
    by_state = {run.ends(): run for run in (one, other)}
    assert by_state.keys() == {"success", "failed"}
    return Contest(by_state["success"], by_state["failed"], alone)


def _fingerprint(run: Run) -> str:
    return storage.read_json(Work(run.xcom("prepare", "work")).job, Prepared).fingerprint


def _publisher(output: Output) -> tuple[str | None, str, str]:
    """Fingerprints of the run that `_SUCCESS`, the manifest and the report are of."""
    manifest = storage.read_json(output.manifest, Manifest)
    report = storage.read_json(output.report_json, Report)
    return claim.success_of(output), manifest.fingerprint, report.again.fingerprint


def test_of_two_runs_on_one_date_with_other_settings_one_leaves_all_of_its_own_output(
    airflow: AirflowSandbox, contest: Contest
) -> None:
    winner = contest.winner
    _ends_well(airflow, winner, contest.expected[winner])
    assert _publisher(winner.output) == (_fingerprint(winner),) * 3
    assert chunk_processes(airflow, contest.loser) == []


def test_the_other_of_the_two_stops_at_its_first_try_with_one_line_that_names_the_winner(
    contest: Contest,
) -> None:
    loser = contest.loser
    failed = [task for task in loser.tasks() if task["state"] == "failed"]
    assert {task["task_id"] for task in failed} == {"merge"}
    assert {task["try_number"] for task in failed} == {1}
    assert (
        f"{loser.output.uri}: run {_fingerprint(contest.winner)[:16]} has claimed this output, so run "
        f"{_fingerprint(loser)[:16]} stops publishing"
    ) in loser.log("merge")


def test_the_other_takes_the_output_back_without_computing_when_its_first_step_is_cleared(
    airflow: AirflowSandbox, contest: Contest
) -> None:
    loser = contest.loser
    body = {"dag_run_id": loser.run_id, "task_ids": ["prepare"], "include_downstream": True}
    airflow.api().post(
        f"/dags/{loser.dag_id}/clearTaskInstances",
        {**body, "only_failed": False, "dry_run": False, "reset_dag_runs": True},
    )
    _ends_well(airflow, loser, contest.expected[loser])
    assert _publisher(loser.output) == (_fingerprint(loser),) * 3
    assert loser.xcom("chunk", map_index=0)["chunks"] == {"done": 1, "reused": 1, "total": 1}


@contextmanager
def _full_disk(folder: Path) -> Iterator[None]:
    """Next to no room in the folder while the block runs."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk that is full needs the right to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="module")
def without_room(
    airflow: AirflowSandbox, scratch: Path, caches: Path, at_once: dict[str, Run]
) -> dict[str, Run]:
    """Runs that found a disk full, one in its merge and one in its chunk, and that go on with room."""
    for other in at_once.values():
        other.ends()
    with _full_disk(scratch):
        merging = start(airflow, "full")
        with _full_disk(caches):
            fetching = start(airflow, "fetching")
            fetching.until(lambda: fetching.states().get("chunk") == "up_for_retry", "a chunk without room")
        merging.until(lambda: merging.states().get("merge") == "up_for_retry", "a merge without room")
    return {"merge": merging, "chunk": fetching}


@pytest.mark.parametrize("step", ["merge", "chunk"])
def test_a_step_goes_on_once_a_full_disk_has_room(
    airflow: AirflowSandbox, without_room: dict[str, Run], expected: Expected, step: str
) -> None:
    run = without_room[step]
    _ends_well(airflow, run, expected)
    assert "No space left" in run.log(step, 1)
    assert {task["try_number"] for task in run.tasks() if task["task_id"] != step} == {1}
