"""Why a run shows no job, or does not go on, as far as Airflow's database says."""

from __future__ import annotations

from staticjob_airflow.names import PREPARE
from staticjob_airflow.page.document import Notice
from staticjob_airflow.page.runs import Run
from staticjob_airflow.pools import without_pool

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
        return Notice(text=SKIPPED if run.missing else LOST)
    return Notice(text=NOT_PREPARED)


def held_up(run: Run) -> Notice | None:
    """What to say of a run one of whose tasks has failed, or names a pool that does not exist."""
    if run.failed is not None:
        return Notice(text=f"{run.failed} failed: its log says why, and what to do.", log_of=run.failed)
    return Notice(text=without_pool(run.missing_pools[0])) if run.missing_pools else None
