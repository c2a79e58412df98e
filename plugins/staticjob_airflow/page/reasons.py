"""Why a run shows no job, or does not go on, as far as Airflow's database says."""

from __future__ import annotations

from staticjob_airflow.names import PREPARE
from staticjob_airflow.page.document import Notice
from staticjob_airflow.page.runs import Run

NOT_PREPARED = "Nothing is known of this job yet: the task prepare has not succeeded."
SKIPPED = "Input missing: skipped, as airflow.on_missing_input says. When the data has come, clear prepare."
WAITING = "Input missing: prepare waits for it, as airflow.on_missing_input says."
LOST = "The task prepare has succeeded, but what it told the other tasks is gone; clear it to have it again."
FAILED = {"failed": "prepare failed", "up_for_retry": "prepare failed and will be tried again"}


def without_job(run: Run) -> Notice:
    """What to say of a run that is not of one job, or not yet."""
    if run.sweep is not None:
        where = f"its points lie beneath {run.sweep}, and once all are done its report is their table"
        return Notice(text=f"A sweep: {where}.")
    if run.prepare in FAILED:
        why = run.failure or "it could not say why; its log may"
        return Notice(text=f"{FAILED[run.prepare]}: {why}", log_of=PREPARE)
    if run.prepare == "deferred":
        return Notice(text=WAITING)
    if run.prepare == "success":
        return Notice(text=SKIPPED if run.finish == "skipped" else LOST)
    return Notice(text=NOT_PREPARED)


def waiting_for_pool(run: Run) -> Notice | None:
    """What to say of a run whose tasks name a pool that does not exist; the scheduler's log alone says so."""
    if not run.missing_pools:
        return None
    name = run.missing_pools[0]
    return Notice(
        text=f"Pool {name!r} does not exist, so the tasks in it stay scheduled: create it (airflow pools set "
        f'{name} 1 "one slot per GPU") or correct airflow.pool in the job file.'
    )
