"""The jobs that run, the functions they call, and how a run of one is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_runs import Run
from small_jobs import MINILM

from staticjob.config.job_file import read_job_file
from staticjob.layout import Output
from staticjob.sandbox.airflow import REPOSITORY
from staticjob.sandbox.demo import trigger
from staticjob.sandbox.rest import AirflowApi

ROWS = 240
DATE = "2026-01-31"
BUCKET = "s3://end-to-end"
ANSWERS = "gsm8k_answers"


def job(name: str, source: str = "in", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "model": {"path": MINILM},
        "input": {"uri": f"{BUCKET}/{source}/{{date}}", "columns": {"text": "text"}, "keep": ["id"]},
        "output": {"uri": f"{BUCKET}/{name}/{{date}}"},
        "limits": {"max_length": 32},
        # Two rows a batch: a hundred batches, so that a kill finds the chunk half done.
        "batching": {"token_budget": 64, "ladder": [32], "chunk_slots": 10**9},
        "airflow": {"retries": 1},
        **changes,
    }


# Whom the jobs call: each call leaves a line. Airflow runs one in the DAG processor, one in its executor.
ALERTS = """
import json, os

def _note(kind, dag_id, run_id):
    with open(os.environ["TEST_ALERTS"], "a") as file:
        file.write(json.dumps([kind, dag_id, run_id]) + "\\n")

def succeeded(context):
    _note("success", context["dag_run"].dag_id, context["dag_run"].run_id)

def failed(context):
    _note("failure", context["dag_run"].dag_id, context["dag_run"].run_id)

def late(context):
    _note("deadline", context["dag_run"]["dag_id"], context["dag_run"]["dag_run_id"])
"""
CALLS = {"on_success": "my_alerts.succeeded", "on_failure": "my_alerts.failed"}
LATE = {"deadline_hours": 1 / 3600, "on_deadline": "my_alerts.late"}  # after a second

JOBS = (
    job("undisturbed", cost={"gpu_hour": 2.5}, airflow={"retries": 1, **CALLS, **LATE}),
    job("killed"),
    job("empty", source="nothing"),
    job(
        "mistaken",
        input={"uri": f"{BUCKET}/in/{DATE}", "columns": {"text": "txt"}},
        airflow={"retries": 1, **CALLS},
    ),
    job("skipped", source="never", airflow={"on_missing_input": "skip"}),
    job("awaited", source="late", airflow={"on_missing_input": "wait", "aws_conn_id": "store"}),
)


def answers(model: Path) -> dict[str, Any]:
    """`jobs/gsm8k_answers.yaml` with another model, in these tests' bucket and shorter."""
    job = read_job_file(REPOSITORY / "jobs" / f"{ANSWERS}.yaml")
    job["model"] = {"path": str(model)}
    job["input"]["uri"] = f"{BUCKET}/questions/{{date}}"
    job["output"]["uri"] = f"{BUCKET}/{ANSWERS}/{{date}}"
    job["limits"]["max_length"] = 64
    job["generate"]["max_new_tokens"] = 24
    job["airflow"]["schedule"] = None
    return job


def start(api: AirflowApi, dag_id: str, conf: dict[str, Any]) -> Run:
    return Run(api, dag_id, trigger(api, dag_id, conf), Output(f"{BUCKET}/{dag_id}/{DATE}"))
