"""The DAG of a job: prepare → tokenize[] → plan → chunk[] → merge[] → finish."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, Asset, AssetAlias, CronDataIntervalTimetable, Param, TriggerRule, task

from staticjob.config.airflow import AirflowConfig
from staticjob.config.job import JobConfig
from staticjob.config.job_file import PLACEHOLDER
from staticjob_airflow.adhoc import form
from staticjob_airflow.alerts import alerts
from staticjob_airflow.chunk import ChunkOperator
from staticjob_airflow.finish import FinishOperator
from staticjob_airflow.merge import MergeOperator
from staticjob_airflow.names import CHUNK, FINISH, PREPARE, TAG
from staticjob_airflow.plan import PlanOperator
from staticjob_airflow.prepare import PrepareOperator
from staticjob_airflow.tokenize import TokenizeOperator

ADHOC = "staticjob_adhoc"
RETRIES = {
    "retry_delay": dt.timedelta(seconds=10),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": dt.timedelta(minutes=10),
}
# A step with nothing to map is skipped; what follows it still runs, unless something failed.
AFTER = {"trigger_rule": TriggerRule.NONE_FAILED}
DATE = Param(
    None,
    type=["null", "string"],
    format="date",
    title="Date",
    description="Fills {date} in the job file. Empty: the start of the run's data interval, or, where a "
    "manual run has none, the day it is triggered.",
)
OVERRIDES = Param(
    [],
    type="array",
    items={"type": "string", "pattern": "^[^=]+=.*$"},
    title="Overrides",
    description="One key=value a line, as with --set, for this run only; for example limits.max_length=256. "
    "What this run publishes replaces the output of its date.",
)


def job_dag(path: str, job: JobConfig, text: str) -> DAG:
    """The DAG of one job file. path: where the workers find it. text: the file, shown in the UI."""
    settings = job.airflow or AirflowConfig()
    return _dag(
        job.name,
        settings,
        job=path,
        asset=asset_of(job),
        description=f"{job.task}: {job.input.uri} to {job.output.uri}",
        **file_options(settings, text),
    )


def adhoc_dag() -> DAG:
    """The DAG that takes a whole job through its form."""
    return _dag(
        ADHOC,
        AirflowConfig(max_active_runs=16),
        job=None,
        asset=None,
        description="A whole job, given with the run",
        doc_md="Fill the form to run any job once. The fields are the keys of a job file.",
        schedule=None,
        params={**form(), "date": DATE},
    )


def asset_of(job: JobConfig) -> Asset:
    """The output up to its first placeholder: one asset for all dates of a job.

    Tasks emit it by an alias. Airflow fails a task that names an asset, before it runs, while another
    DAG has the URI under another name; it asks nothing of an asset that an alias stands for.
    """
    uri = job.output.uri
    return Asset(PLACEHOLDER.split(uri, maxsplit=1)[0].rstrip("/") or uri)


def file_options(settings: AirflowConfig, text: str) -> dict[str, Any]:
    """Options of a DAG that a file with this text makes."""
    schedule = settings.schedule
    return {
        "doc_md": f"```yaml\n{text}\n```",
        "schedule": CronDataIntervalTimetable(schedule, timezone=settings.timezone) if schedule else None,
        "params": {"date": DATE, "set": OVERRIDES},
    }


def empty_dag(dag_id: str, settings: AirflowConfig, **options: Any) -> DAG:
    """A DAG without tasks; options: those of DAG that are its own."""
    return DAG(
        dag_id,
        start_date=dt.datetime.combine(settings.start_date, dt.time(), ZoneInfo(settings.timezone)),
        catchup=False,
        max_active_runs=settings.max_active_runs,
        default_args={"retries": settings.retries, **RETRIES, **_queue(settings.cpu_queue)},
        tags=[TAG],
        auto_register=False,  # the DAG files say which DAGs are theirs
        **alerts(settings),
        **options,
    )


def _dag(
    dag_id: str, settings: AirflowConfig, *, job: str | None, asset: Asset | None, **options: Any
) -> DAG:
    with empty_dag(dag_id, settings, **options) as dag:
        store = {"aws_conn_id": settings.aws_conn_id}
        prepare = PrepareOperator(job=job, **prepare_options(settings), **store)
        work = prepare.output["work"]
        tokenize = TokenizeOperator.partial(
            task_id="tokenize", work=work, map_index_template="{{ task.split }}", **store
        ).expand(split=prepare.output)
        plan = PlanOperator(task_id="plan", work=work, **store, **AFTER)
        chunk = ChunkOperator.partial(
            task_id=CHUNK,
            work=work,
            pool=settings.pool,
            queue=settings.queue,
            map_index_template="{{ task.pack.name }}",
            **store,
        ).expand(pack=plan.output)

        @task(task_id="groups")
        def own_groups(groups: list[str]) -> list[str]:
            """Airflow keeps one mapped length a task, and plan's is its packs: groups need their own."""
            return groups

        groups = own_groups(plan.output["groups"])
        merge = MergeOperator.partial(
            task_id="merge", work=work, map_index_template="{{ task.group }}", **store, **AFTER
        ).expand(group=groups)
        finish = FinishOperator(
            task_id=FINISH, work=work, asset=asset, outlets=[AssetAlias(dag_id)], **store, **AFTER
        )
        tokenize >> plan >> chunk >> merge >> finish
    return dag


def prepare_options(settings: AirflowConfig) -> dict[str, Any]:
    """Options of the task that prepares, but for what it prepares."""
    return {
        "task_id": PREPARE,
        "timezone": settings.timezone,
        "on_missing_input": settings.on_missing_input,
        "wait_hours": settings.wait_hours,
    }


def _queue(name: str | None) -> dict[str, str]:
    return {"queue": name} if name else {}
