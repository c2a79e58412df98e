"""Runs of jobs for the page to show, as they are left in Airflow's database and beside the output."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import airflow_home  # noqa: F401  (first: Airflow reads its settings at import)
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.session import create_session
from fabricate import Fabricated
from sqlalchemy import insert
from staticjob_airflow.dag import job_dag

from staticjob import claim, storage
from staticjob.config.job_file import validate_job

RUN = "scheduled__2026-01-31T02:00:00+00:00"
NIGHT = dt.datetime(2026, 1, 31, 2, tzinfo=dt.UTC)


def publish(made: Fabricated) -> bytes:
    """What `finish` leaves beside the output, as far as the page looks; returns the manifest."""
    fingerprint = made.prepared.fingerprint
    claim.take(made.output.uri, fingerprint)
    manifest = json.dumps({"fingerprint": fingerprint, "finished": f"{NIGHT:%F}"}).encode()
    storage.put(made.output.manifest, manifest)
    storage.put(made.output.report_html, b"<h1>report</h1>")
    return manifest


def add_run(dag_id: str, *, state: str = "success", tag: str = "staticjob", work: str | None = None) -> None:
    """A DAG with one run, as the scheduler leaves them in the database."""
    with create_session() as session:
        session.add(DagModel(dag_id=dag_id, bundle_name="bundle", is_stale=False, fileloc="dag.py"))
        session.flush()
        session.add(DagTag(dag_id=dag_id, name=tag))
        run = DagRun(dag_id=dag_id, run_id=RUN, run_type="manual", state=state, run_after=NIGHT)
        session.add(run)
        session.flush()
        if work is not None:
            push(session, run, "prepare", "work", work)


def add_later_run(dag_id: str, run_id: str, tasks: dict[str, str], **pushed: str) -> None:
    """A failed run after the DAG's first, with these states of its tasks, and this pushed by `prepare`."""
    with create_session() as session:
        run = DagRun(dag_id=dag_id, run_id=run_id, run_type="manual", state="failed", run_after=NIGHT)
        session.add(run)
        session.flush()
        for task_id, state in tasks.items():
            add_task(session, run, task_id, state)
        for key, value in pushed.items():
            place = {"dag_id": dag_id, "run_id": run_id, "task_id": "prepare", "map_index": -1}
            session.add(XComModel(dag_run_id=run.id, **place, key=key, value=value))


def serialize(dag_id: str, made: Fabricated, aws_conn_id: str) -> None:
    """The DAG of a job file with this connection, as Airflow keeps what it has parsed."""
    job = made.prepared.config.model_dump(mode="json", exclude={"airflow"})
    file = {**job, "name": dag_id, "airflow": {"aws_conn_id": aws_conn_id}}
    dag = job_dag("job.yaml", validate_job(file, "job.yaml"), "")
    SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), bundle_name="bundle")


def push(session: Any, run: DagRun, task_id: str, key: str, value: Any) -> None:
    place = add_task(session, run, task_id, "success")
    session.add(XComModel(dag_run_id=run.id, **place, key=key, value=value))
    session.flush()


def add_task(
    session: Any, run: DagRun, task_id: str, state: str, pool: str = "default_pool"
) -> dict[str, Any]:
    place = {"dag_id": run.dag_id, "run_id": run.run_id, "task_id": task_id, "map_index": -1}
    session.execute(insert(TaskInstance).values(**place, id=uuid.uuid4(), state=state, pool=pool))
    return place
