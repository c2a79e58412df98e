"""Pools that tasks of a run name and that do not exist: Airflow leaves such tasks scheduled, in silence."""

from __future__ import annotations

from airflow.models.dag import DagTag
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import select
from sqlalchemy.orm import Session

from staticjob_airflow.names import TAG


def missing_pools(session: Session, run: DagRun) -> tuple[str, ...]:
    """Names of the pools, in order; none for a run of a DAG that is no job."""
    query = (
        select(TaskInstance.pool)
        .distinct()
        .join(DagTag, DagTag.dag_id == TaskInstance.dag_id)
        .outerjoin(Pool, Pool.pool == TaskInstance.pool)
        .where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
        .where(DagTag.name == TAG, Pool.id.is_(None))
        .order_by(TaskInstance.pool)
    )
    return tuple(session.scalars(query))


def without_pool(name: str) -> str:
    """What to say of a run that waits for it."""
    return (
        f"pool {name!r} does not exist, so the tasks in it stay scheduled: create it (airflow pools set "
        f'{name} 1 "one slot per GPU") or correct airflow.pool in the job file'
    )
