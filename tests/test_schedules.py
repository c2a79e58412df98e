"""Which day a run is for: from the data interval alone, each once, across daylight saving and backfills."""

from __future__ import annotations

import datetime as dt
import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow_home  # noqa: F401  (first: Airflow reads its settings at import)
import pytest
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from pendulum import DateTime
from staticjob_airflow.dates import date_of_run
from staticjob_airflow.prepare import PrepareOperator

STUB = str(Path(__file__).with_name("stub_staticjob.py"))
BERLIN = "Europe/Berlin"  # its clocks change on 2026-03-29 and 2026-10-25
CHANGES = [dt.datetime(2026, 3, 27, tzinfo=dt.UTC), dt.datetime(2026, 10, 23, tzinfo=dt.UTC)]


def intervals(cron: str, start: dt.datetime, days: int) -> list[DataInterval]:
    """The data intervals of all runs of a schedule in Berlin, as Airflow's scheduler makes them."""
    timetable = CronDataIntervalTimetable(cron, BERLIN)
    first, last = DateTime.instance(start), DateTime.instance(start + dt.timedelta(days=days))
    within = TimeRestriction(earliest=first, latest=last, catchup=True)
    found: list[DataInterval] = []
    while run := timetable.next_dagrun_info(
        last_automated_data_interval=found[-1] if found else None, restriction=within
    ):
        found.append(run.data_interval)
    return found


@pytest.mark.parametrize("start", CHANGES)
@pytest.mark.parametrize("cron", ["0 * * * *", "0 2 * * *", "30 2 * * *", "0 0 * * *"])
def test_every_moment_is_in_exactly_one_run_when_the_clocks_change(cron: str, start: dt.datetime) -> None:
    runs = intervals(cron, start, 5)
    assert len(runs) >= 4
    for run, following in pairwise(runs):
        assert run.start < run.end == following.start
    if cron == "0 * * * *":
        assert all(run.end - run.start == dt.timedelta(hours=1) for run in runs)


@pytest.mark.parametrize("start", CHANGES)
@pytest.mark.parametrize("cron", ["0 2 * * *", "30 2 * * *", "0 0 * * *"])
def test_every_day_has_exactly_one_nightly_run_when_the_clocks_change(cron: str, start: dt.datetime) -> None:
    runs = intervals(cron, start, 6)
    days = [date_of_run(None, run.start, run.end, BERLIN).date for run in runs]
    assert days == [days[0] + dt.timedelta(days=n) for n in range(len(days))]


def test_a_backfill_runs_each_interval_into_its_own_day_whatever_its_run_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATICJOB_PYTHON", STUB)
    monkeypatch.setenv("STUB_SEEN", str(tmp_path / "seen.json"))
    monkeypatch.setenv("STUB", json.dumps({"stdout": '{"work": "w", "output": "o", "splits": []}'}))
    operator = PrepareOperator(task_id="prepare", job="/jobs/a.yaml", timezone=BERLIN)
    days = []
    for run in intervals("0 2 * * *", dt.datetime(2026, 3, 26, tzinfo=dt.UTC), 7):
        context: dict[str, Any] = {
            "params": {},
            "dag": SimpleNamespace(params={}),
            "dag_run": SimpleNamespace(
                conf=None, run_id="backfill__2031-12-24T00:00:00", run_after=dt.datetime(2031, 12, 24)
            ),
            "data_interval_start": run.start,
            "ti": SimpleNamespace(xcom_push=lambda key, value: None),
        }
        operator.execute(context)
        argv = json.loads((tmp_path / "seen.json").read_text())["argv"]
        days.append(argv[argv.index("--date") + 1])
    first = dt.date(2026, 3, 26)
    assert days == [(first + dt.timedelta(days=n)).isoformat() for n in range(len(days))]
    assert len(days) >= 7
