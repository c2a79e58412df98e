"""Which day a run is for, when Airflow 3 may give it neither a logical date nor an interval."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from airflow.sdk.exceptions import AirflowFailException


@dataclass(frozen=True)
class RunDate:
    """The day, and why it is that one, for the task log."""

    date: dt.date
    reason: str


def date_of_run(
    given: str | None, interval_start: dt.datetime | None, run_after: dt.datetime, timezone: str
) -> RunDate:
    """The day that fills `{date}`: the parameter, else the data interval's start, else the trigger's day.

    Moments are turned into days in the time zone of the schedule: 02:00 in Tokyo is the day
    before in UTC.
    """
    if given:
        try:
            return RunDate(dt.date.fromisoformat(given), "given with the run")
        except ValueError:
            raise AirflowFailException(f"date {given!r}: expected YYYY-MM-DD") from None
    zone = ZoneInfo(timezone)
    if interval_start is not None:
        return RunDate(interval_start.astimezone(zone).date(), f"start of the data interval, in {timezone}")
    return RunDate(
        run_after.astimezone(zone).date(),
        f"the run has no data interval; the day it was triggered, in {timezone}",
    )
