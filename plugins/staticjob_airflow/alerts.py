"""Whom a DAG calls when a run succeeds, fails or passes its deadline: functions the job file names."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from importlib import import_module
from typing import Any

from airflow.sdk import DeadlineAlert, DeadlineReference, SyncCallback

from staticjob.config.airflow import AirflowConfig
from staticjob.errors import ConfigError


def alerts(settings: AirflowConfig) -> dict[str, Any]:
    """Options of the DAG. Airflow's DAG processor calls the functions, the deadline's its executor.

    Raises ImportError or AttributeError for a function that cannot be imported here.
    """
    options: dict[str, Any] = {}
    if settings.on_success is not None:
        options["on_success_callback"] = _function(settings.on_success)
    if settings.on_failure is not None:
        options["on_failure_callback"] = _function(settings.on_failure)
    if settings.deadline_hours is not None and settings.on_deadline is not None:
        options["deadline"] = DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=dt.timedelta(hours=settings.deadline_hours),
            callback=SyncCallback(settings.on_deadline),
        )
    return options


def check_alerts(settings: AirflowConfig, where: str) -> None:
    """Raise ConfigError for a function that does not exist: an alert must not fail when it is needed."""
    for key in ("on_success", "on_failure", "on_deadline"):
        path = getattr(settings, key)
        try:
            known = path is None or callable(_function(path))
        except (ImportError, AttributeError):
            known = False
        if not known:
            raise ConfigError(
                f"{where}: airflow.{key} {path!r}: no such function; name one that Airflow can import, "
                "for example of a module in its plugins folder"
            )


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
