"""The section `airflow`, and which schedules and time zones Airflow takes, told without Airflow."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, model_validator

from staticjob.config.section import Number, Section, Whole

Callable = Annotated[str, Field(pattern=r"^\w+(\.\w+)+$")]  # module.function, importable by Airflow
# Airflow's names for cron expressions.
PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")


class AirflowConfig(Section):
    """How the job becomes a DAG."""

    schedule: str | None = Field(
        default=None, description="cron expression of the data interval, or a preset: @daily"
    )
    timezone: str = Field(default="UTC", description="time zone of the schedule")
    start_date: dt.date = Field(default=dt.date(2026, 1, 1), description="first data interval")
    pool: str = Field(default="gpu", description="pool of the chunk tasks: slots = GPUs")
    queue: str = Field(default="gpu", description="queue of the chunk tasks")
    cpu_queue: str | None = Field(default=None, description="queue of all other tasks")
    max_active_runs: Whole = Field(default=1, ge=1, description="runs of this DAG at once")
    retries: Whole = Field(default=3, ge=0, description="retries after infrastructure failures")
    max_mapped_tasks: Whole = Field(
        default=512, ge=1, le=1024, description="most mapped tasks of one step; core.max_map_length caps it"
    )
    aws_conn_id: str | None = Field(
        default=None, description="connection with the store's credentials; default: the worker's own"
    )
    on_missing_input: Literal["fail", "skip", "wait"] = Field(
        default="fail", description="wait holds no worker; skip ends the run well, its steps skipped"
    )
    wait_hours: Number = Field(
        default=24.0, gt=0, description="longest wait for the input; then the run fails"
    )
    on_success: Callable | None = Field(
        default=None, description="called with the context of a run that ended"
    )
    on_failure: Callable | None = Field(default=None, description="called with the context of a failed run")
    deadline_hours: Number | None = Field(
        default=None,
        gt=0,
        description="time from the queueing of a run to its end; then on_deadline is called",
    )
    on_deadline: Callable | None = Field(
        default=None, description="called once when a run passes its deadline"
    )

    @model_validator(mode="after")
    def _deadline(self) -> AirflowConfig:
        if (self.deadline_hours is None) != (self.on_deadline is None):
            raise ValueError("give both deadline_hours and on_deadline, or neither")
        return self


def is_schedule(text: str) -> bool:
    """Whether `text` is one of PRESETS or a cron expression; one of 30 February is none."""
    from croniter import CroniterBadDateError, croniter  # deferred: few jobs have a schedule

    if text in PRESETS:
        return True
    try:
        return bool(croniter.is_valid(text) and croniter(text).get_next())
    except CroniterBadDateError:
        return False


def is_timezone(name: str) -> bool:
    """Whether the time zone database knows `name`."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a region, which is a folder there
        return False
    return True
