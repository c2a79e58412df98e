"""What Airflow's database knows of a run: its state, its connection, and what `prepare` has pushed."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from airflow.models.dag import DagModel, DagTag
from airflow.models.dagbag import CachedDBDagBag
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from staticjob_airflow.names import FAILURE, MISSING, PREPARE, TAG
from staticjob_airflow.page.document import RunInfo
from staticjob_airflow.page.rights import RunKey
from staticjob_airflow.pools import missing_pools

FINAL_STATES = ("success", "failed")
KEPT_DAGS = 256
# How many earlier runs may be read to find one whose numbers can be shown.
EARLIER_RUNS = 3

_dags = CachedDBDagBag(load_op_links=False, cache_size=KEPT_DAGS, cache_ttl=0, stats_prefix="staticjob_page")


@dataclass(frozen=True)
class Run:
    """A DAG run. work: address of its job's work prefix; None before `prepare` has succeeded.

    sweep: output folder of a run that is a sweep; such a run has many jobs, and no `work`.
    aws_conn_id: connection to the store, None for the credentials of whoever reads.
    prepare: state of this task. failure: why it failed, where it could still say so. missing: the input
        for want of which it skipped all that follows.
    failed: the first of the tasks after `prepare` that failed and is not tried again.
    missing_pools: pools that its tasks name and that do not exist; looked for until the run is over.
    number: Airflow's own, larger for later runs.
    """

    info: RunInfo
    work: str | None
    sweep: str | None = None
    aws_conn_id: str | None = None
    prepare: str | None = None
    failure: str | None = None
    missing: str | None = None
    failed: str | None = None
    missing_pools: tuple[str, ...] = ()
    number: int = 0


def find_run(key: RunKey) -> Run | None:
    """The run of a staticjob DAG; None when there is none."""
    with create_session() as session:
        run = session.scalar(
            select(DagRun)
            .join(DagTag, DagTag.dag_id == DagRun.dag_id)
            .where(DagTag.name == TAG, DagRun.dag_id == key.dag_id, DagRun.run_id == key.run_id)
        )
        return None if run is None else _run(session, run)


def job_dags() -> list[str]:
    """Ids of all staticjob DAGs, by name."""
    with create_session() as session:
        query = (
            select(DagModel.dag_id)
            .join(DagTag, DagTag.dag_id == DagModel.dag_id)
            .where(DagTag.name == TAG, ~DagModel.is_stale)
            .order_by(DagModel.dag_id)
        )
        return list(session.scalars(query))


def newest_runs(dag_ids: list[str]) -> list[Run]:
    """The newest run of each of the DAGs that has one, in their order."""
    with create_session() as session:
        newest = select(func.max(DagRun.id)).where(DagRun.dag_id.in_(dag_ids)).group_by(DagRun.dag_id)
        runs = session.scalars(select(DagRun).where(DagRun.id.in_(newest)).order_by(DagRun.dag_id))
        return [_run(session, run) for run in runs]


def prepared_before(run: Run) -> list[Run]:
    """The newest runs of the same DAG before this one that prepared a job, newest first."""
    with create_session() as session:
        earlier = session.scalars(
            select(DagRun)
            .join(XComModel, XComModel.dag_run_id == DagRun.id)
            .where(XComModel.task_id == PREPARE, XComModel.key == "work")
            .where(DagRun.dag_id == run.info.dag_id, DagRun.id < run.number)
            .order_by(DagRun.id.desc())
            .limit(EARLIER_RUNS)
        )
        return [_run(session, found) for found in earlier]


def _run(session: Session, run: DagRun) -> Run:
    def pushed(key: str) -> str | None:
        """What prepare told the steps that follow."""
        query = XComModel.get_many(run_id=run.run_id, key=key, task_ids=PREPARE, dag_ids=run.dag_id, limit=1)
        found = session.scalar(query)
        return None if found is None else str(XComModel.deserialize_value(found))

    state = str(run.state)
    info = RunInfo(
        dag_id=run.dag_id,
        run_id=run.run_id,
        state=state,
        started=_time(run.start_date),
        ended=_time(run.end_date),
        final=state in FINAL_STATES,
    )
    # As it was parsed: the connection of the run's tasks is never what a task has pushed.
    dag = _dags.get_dag_for_run(run, session)
    prepare = dag.task_dict.get(PREPARE) if dag else None  # a DAG of somebody else's may have the tag
    return Run(
        info,
        pushed("work"),
        sweep=pushed("output") if pushed("sweep") else None,
        aws_conn_id=getattr(prepare, "aws_conn_id", None),
        prepare=_state_of_prepare(session, run),
        failure=pushed(FAILURE),
        missing=pushed(MISSING),
        failed=_failed(session, run),
        missing_pools=() if info.final else missing_pools(session, run),
        number=run.id,
    )


def _state_of_prepare(session: Session, run: DagRun) -> str | None:
    query = select(TaskInstance.state).where(
        TaskInstance.dag_id == run.dag_id,
        TaskInstance.run_id == run.run_id,
        TaskInstance.task_id == PREPARE,
    )
    return session.scalar(query)


def _failed(session: Session, run: DagRun) -> str | None:
    query = (
        select(TaskInstance.task_id)
        .where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
        .where(TaskInstance.state == "failed", TaskInstance.task_id != PREPARE)
        .order_by(TaskInstance.end_date)
        .limit(1)
    )
    return session.scalar(query)


def _time(moment: dt.datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(dt.UTC).isoformat(timespec="seconds")
