"""A line on a run, shown in Airflow's list of runs: what came of it, or that it cannot go on.

The scheduler writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from staticjob_airflow.names import FINISH, MISSING, PREPARE

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

OURS = "staticjob: "


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:
    """Note a pool that does not exist as the run starts, over what was noted when it ended before."""
    from sqlalchemy.orm import object_session

    from staticjob_airflow.pools import missing_pools, without_pool

    session = object_session(dag_run)
    names = missing_pools(session, dag_run) if session else ()
    _note(dag_run, f"at its start, {without_pool(names[0])}" if names else None)


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """Leave no note of a start or of a success: neither says why the run failed, as its page does."""
    _note(dag_run, None)


@hookimpl
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:
    """Note what `finish` returned, or that the input was missing: such a run is green too."""
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return
    result = _pushed(session, dag_run, FINISH, "return_value")
    if _pushed(session, dag_run, PREPARE, MISSING):
        _note(dag_run, f"skipped, its input was missing; when the data has come, clear {PREPARE}")
    elif isinstance(result, dict) and "useful_share" in result:
        _note(dag_run, summary(result))
    else:
        _note(dag_run, None)


def _pushed(session: Session, dag_run: DagRun, task_id: str, key: str) -> Any:
    """What a task of the run has pushed under this key; None for nothing."""
    from airflow.models.xcom import XComModel

    query = XComModel.get_many(
        run_id=dag_run.run_id, key=key, task_ids=task_id, dag_ids=dag_run.dag_id, limit=1
    )
    found = session.scalar(query)
    return None if found is None else XComModel.deserialize_value(found)


def _note(dag_run: DagRun, text: str | None) -> None:
    """Write this note, or none, over one of ours; what a person wrote stays."""
    if dag_run.note and not dag_run.note.startswith(OURS):
        return
    if text is not None:
        dag_run.note = OURS + text
    elif dag_run.note:
        dag_run.dag_run_note = None


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
