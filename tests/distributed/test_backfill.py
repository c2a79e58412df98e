"""A backfill over a week: every date its own output, and nothing computed twice."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from airflow_runs import until
from small_jobs import read_output, texts, write_input

from distributed.jobs import BUCKET
from staticjob import storage
from staticjob.layout import Output
from staticjob.sandbox.airflow import AirflowSandbox

NIGHTLY = "nightly"
DAYS = [dt.date(2026, 1, 1) + dt.timedelta(days=number) for number in range(7)]


def _output(day: dt.date) -> Output:
    return Output(f"{BUCKET}/{NIGHTLY}/{day}")


def _backfill(airflow: AirflowSandbox, reprocess: str) -> None:
    """Start a backfill. Airflow looks every 30 s whether one has ended, and refuses a second until then."""
    until(lambda: not _unended(airflow), "the end of the backfill before")
    dates = ("--from-date", str(DAYS[0]), "--to-date", str(DAYS[-1]))
    airflow.run("backfill", "create", "--dag-id", NIGHTLY, *dates, "--reprocess-behavior", reprocess)


def _unended(airflow: AirflowSandbox) -> list[dict[str, Any]]:
    """Backfills of the job that Airflow takes for running."""
    found = airflow.api().get("/backfills", dag_id=NIGHTLY)["backfills"]
    return [backfill for backfill in found if backfill["completed_at"] is None]


def _finished(airflow: AirflowSandbox, tries: int) -> dict[str, dict[str, Any]]:
    """What `finish` returned by run id, once every run of the backfill has ended well `tries` times."""
    api = airflow.api()

    def runs() -> list[str]:
        found = api.get(f"/dags/{NIGHTLY}/dagRuns", run_type="backfill")["dag_runs"]
        assert not [run for run in found if run["state"] == "failed"]
        return [run["dag_run_id"] for run in found if run["state"] == "success"]

    def finish(run_id: str) -> str:
        return f"/dags/{NIGHTLY}/dagRuns/{run_id}/taskInstances/finish"

    def done() -> bool:
        ended = runs()
        return len(ended) == len(DAYS) and all(api.get(finish(r))["try_number"] == tries for r in ended)

    until(done, "the backfill")
    return {r: api.get(f"{finish(r)}/xcomEntries/return_value")["value"] for r in runs()}


@pytest.fixture(scope="module")
def first(airflow: AirflowSandbox) -> dict[str, dict[str, Any]]:
    """What every date of the backfill returned. The day's own run goes on beside it, and has no input."""
    for number, day in enumerate(DAYS):
        write_input(f"{BUCKET}/days/{day}", texts(len(DAYS))[number : number + 1], files=1)
    airflow.api().patch(f"/dags/{NIGHTLY}", {"is_paused": False})
    _backfill(airflow, "none")
    return _finished(airflow, 1)


def test_every_date_of_a_backfill_is_read_from_and_written_to_its_own_place(
    first: dict[str, dict[str, Any]],
) -> None:
    assert {result["output"] for result in first.values()} == {_output(day).uri for day in DAYS}
    answers = [read_output(_output(day)) for day in DAYS]
    assert [len(rows) for rows in answers] == [1] * len(DAYS)
    assert len({str(row["embedding"]) for (row,) in answers}) == len(set(texts(len(DAYS))))


def test_dates_whose_input_has_not_changed_are_processed_again_without_computing_anything(
    airflow: AirflowSandbox, first: dict[str, dict[str, Any]]
) -> None:
    def objects() -> dict[str, str]:
        """All but what says where a chunk stands and when a run began."""
        found = storage.list_objects(f"{BUCKET}/{NIGHTLY}/")
        return {o.uri: o.version for o in found if not {"chunks", "started.json"} & set(o.uri.split("/"))}

    before = objects()
    _backfill(airflow, "completed")
    again = _finished(airflow, 2)
    assert again.keys() == first.keys()
    assert all(result["reused"] for result in again.values())
    assert objects() == before
