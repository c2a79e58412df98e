"""A line on a run, shown in Airflow's list of runs: what came of it, or that it cannot go on.

The scheduler writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from staticjob_airflow.names import FINISH, PREPARE, TAG

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

OURS = "staticjob: "


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:
    """Note a pool that does not exist as the run starts; its success is noted over it."""
    from sqlalchemy.orm import object_session

    from staticjob_airflow.pools import missing_pools, without_pool

    session = object_session(dag_run)
    if session is None or not _may_note(dag_run):
        return
    for name in missing_pools(session, dag_run)[:1]:
        dag_run.note = f"{OURS}at its start, {without_pool(name)}"


@hookimpl
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:
    """Note what `finish` returned, or that the input was missing, unless a person wrote a note."""
    from airflow.models.xcom import XComModel
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None or not _may_note(dag_run):
        return
    query = XComModel.get_many(
        run_id=dag_run.run_id, key="return_value", task_ids=FINISH, dag_ids=dag_run.dag_id, limit=1
    )
    found = session.scalar(query)
    result = None if found is None else XComModel.deserialize_value(found)
    if isinstance(result, dict) and "useful_share" in result:
        dag_run.note = OURS + summary(result)
    elif _was_skipped(session, dag_run):
        dag_run.note = f"{OURS}skipped, its input was missing; when the data has come, clear {PREPARE}"


def _was_skipped(session: Session, dag_run: DagRun) -> bool:
    """Whether `prepare` found no input and skipped all that follows: such a run is green too."""
    from airflow.models.dag import DagTag
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    query = (
        select(TaskInstance.state)
        .join(DagTag, DagTag.dag_id == TaskInstance.dag_id)
        .where(TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id)
        .where(TaskInstance.task_id == FINISH, DagTag.name == TAG)
    )
    return session.scalar(query) == "skipped"


def _may_note(dag_run: DagRun) -> bool:
    """Whether no person wrote a note."""
    return not dag_run.note or dag_run.note.startswith(OURS)


def summary(result: dict[str, Any]) -> str:
    """`240 rows (238 ok, 2 empty), 92.3% useful, 58.1 s on the device, $0.04`, of what `finish` printed.

    Of an output that stood before, time and cost are those of the run that made it: `by an earlier run`.
    """
    from staticjob.units import duration, money, plural

    statuses = ", ".join(f"{rows:,} {status}" for status, rows in result["statuses"].items())
    parts = [
        f"{plural(result['rows'], 'row')} ({statuses})" if statuses else plural(result["rows"], "row"),
        f"{result['useful_share']:.1%} useful",
        f"{duration(result['seconds'])} on the device",
    ]
    if result["cost"] is not None:
        parts.append(money(result["cost"]))
    if result["reused"]:
        parts[-1] += " by an earlier run"
    return ", ".join(parts)
