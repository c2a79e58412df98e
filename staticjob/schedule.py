"""When a job runs: which schedules and time zones Airflow takes, told without Airflow."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

# Airflow's names for cron expressions.
PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")


def is_schedule(text: str) -> bool:
    """Whether `text` is one of PRESETS or a cron expression."""
    from croniter import croniter  # deferred: few jobs have a schedule

    return text in PRESETS or bool(croniter.is_valid(text))


def is_timezone(name: str) -> bool:
    """Whether the time zone database knows `name`."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a region, which is a folder there
        return False
    return True
