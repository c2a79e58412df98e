"""The demo: upload a sample, trigger the DAG through the REST API, watch it, show what came out."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from staticjob import storage
from staticjob.config.job_file import read_job_file
from staticjob.errors import ConfigError, InfrastructureError
from staticjob.sandbox.airflow import REPOSITORY, USER
from staticjob.sandbox.demos import DATE, Demo
from staticjob.sandbox.rest import AirflowApi
from staticjob.sandbox.stack import STARTING, Sandbox, terminated_as_interrupt
from staticjob.sandbox.view import LiveProgress, result_table, rows_table
from staticjob.status import JobStatus, Read, read_object, read_status

POLL_SECONDS = 1.0
DAG_SECONDS = 60.0
LOG_LINES = 30
SHOWN_ROWS = 3


def run_demo(demo: Demo, run_dir: Path, rows: int | None, port: int) -> None:
    """Do it all and stop everything. Raises InfrastructureError, with the log's end, when a task fails."""
    console = Console()
    sandbox = Sandbox(run_dir, jobs=_unscheduled_job(demo, run_dir), port=port)
    sandbox.airflow.refuse_running()
    console.print(STARTING, soft_wrap=True)
    with terminated_as_interrupt():
        airflow = sandbox.up()
        try:
            console.print(f"Airflow {airflow.url}, user {USER}, password {airflow.password}", highlight=False)
            what = demo.upload(demo.input, demo.rows if rows is None else rows)
            console.print(f"uploaded {what} to {demo.input}", highlight=False)
            _run_and_show(demo, airflow.api(), console, sandbox.run_dir / "report.html")
        finally:
            sandbox.down()
            console.print(
                "store and Airflow are stopped; make up starts them again, with this data", soft_wrap=True
            )


def _run_and_show(demo: Demo, api: AirflowApi, console: Console, report: Path) -> None:
    started = time.monotonic()
    run_id = trigger(api, demo.dag_id, {"date": DATE})
    console.print(f"triggered run {run_id} of DAG {demo.dag_id}", highlight=False)
    read = cache(read_object)
    with LiveProgress(console) as live:
        for steps in watch(api, demo.dag_id, run_id):
            live.draw(steps, _status(demo.output, read))
    finish = f"/dags/{demo.dag_id}/dagRuns/{run_id}/taskInstances/finish"
    finished = api.get(f"{finish}/xcomEntries/return_value")
    result: dict[str, Any] = finished["value"]
    report.write_bytes(storage.read(result["report"]))
    report.with_suffix(".json").write_bytes(storage.read(result["report"].removesuffix("html") + "json"))
    console.print(result_table(result, read_status(demo.output, read), report, time.monotonic() - started))
    console.print(rows_table(*_first_rows(demo.output)))


def _first_rows(output: str) -> tuple[list[dict[str, Any]], str]:
    """A few rows of the first Parquet file of the output, and its URI."""
    import pyarrow.parquet as pq

    files = (o.uri for o in storage.list_objects(output) if o.uri.endswith(".parquet"))
    uri = next(uri for uri in files if "/_staticjob/" not in uri)
    return pq.read_table(BytesIO(storage.read(uri))).slice(0, SHOWN_ROWS).to_pylist(), uri


def _unscheduled_job(demo: Demo, run_dir: Path) -> Path:
    """A folder with the demo's job file as it is, but for the schedule: only the demo triggers it."""
    job = read_job_file(REPOSITORY / "jobs" / f"{demo.dag_id}.yaml")
    job["airflow"] = {**job["airflow"], "schedule": None}
    folder = run_dir / "jobs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{demo.dag_id}.yaml").write_text(yaml.safe_dump(job, sort_keys=False))
    return folder


def trigger(api: AirflowApi, dag_id: str, conf: dict[str, Any]) -> str:
    """Start a run of a DAG, once Airflow has parsed it; ends runs left over from a killed sandbox."""
    deadline = time.monotonic() + DAG_SECONDS
    while api.find(f"/dags/{dag_id}") is None:
        if time.monotonic() > deadline:
            errors = [e["stack_trace"].strip() for e in api.get("/importErrors")["import_errors"]]
            raise ConfigError(f"DAG {dag_id}: not found by Airflow; import errors: {errors or 'none'}")
        time.sleep(0.3)
    for run in api.get(f"/dags/{dag_id}/dagRuns", state=["running", "queued"])["dag_runs"]:
        api.patch(f"/dags/{dag_id}/dagRuns/{run['dag_run_id']}", {"state": "failed"})
    api.patch(f"/dags/{dag_id}", {"is_paused": False})
    run_id = f"manual__{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%S.%f}"
    api.post(f"/dags/{dag_id}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": conf})
    return run_id


def watch(api: AirflowApi, dag_id: str, run_id: str) -> Iterator[str]:
    """Yield the names of the running steps until the run succeeds; InfrastructureError when it fails."""
    while True:
        state = api.get(f"/dags/{dag_id}/dagRuns/{run_id}")["state"]
        tasks = api.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=1000)["task_instances"]
        if state == "success":
            return
        if state == "failed":
            raise InfrastructureError(failures(api, dag_id, run_id))
        active = [task["task_id"] for task in tasks if task["state"] in ("running", "up_for_retry")]
        yield " + ".join(dict.fromkeys(active)) or "waiting for the scheduler"
        time.sleep(POLL_SECONDS)


def failures(api: AirflowApi, dag_id: str, run_id: str) -> str:
    """What failed in a run, with the end of the first failed task's log."""
    tasks = api.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=1000)["task_instances"]
    failed = [task for task in tasks if task["state"] == "failed"]
    if not failed:
        return f"run {run_id} of {dag_id} failed without a failed task"
    first = min(failed, key=lambda task: task["end_date"] or "")
    tail = "\n".join(api.log(dag_id, run_id, first)[-LOG_LINES:])
    return f"task {first['task_id']} of {dag_id} failed; the end of its log:\n{tail}"


def _status(output: str, read: Read) -> JobStatus | None:
    """The job's progress; None while there is none to read."""
    with suppress(ConfigError, InfrastructureError):
        return read_status(output, read)
    return None
