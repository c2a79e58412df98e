"""First step: pin the input and the model, and name the splits to tokenize."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    DownstreamTasksSkipped,
    TaskDeferralTimeout,
)

from staticjob.nearest import nearest
from staticjob_airflow.adhoc import job_from_form
from staticjob_airflow.base import StaticJobOperator
from staticjob_airflow.command import Outcome
from staticjob_airflow.dates import date_of_run
from staticjob_airflow.names import FAILURE, MISSING

OVERRIDES = "set"
LOOK_SECONDS = 60.0  # between two looks at a missing input


class PrepareOperator(StaticJobOperator):
    """`staticjob prepare`: returns the names of the splits; pushes the URIs `work` and `output`.

    When it fails or skips it pushes the reason instead, for the run page.

    job: path of the job file; None takes the job from the run's form (see `adhoc.py`).
    timezone: of the schedule; decides which day a run belongs to.
    on_missing_input: `fail`, `skip` (all that follows) or `wait` (in the triggerer).
    wait_hours: longest wait, over all looks; then the task fails without a retry.
    """

    template_fields = (*StaticJobOperator.template_fields, "job")
    command: tuple[str, ...] = ("prepare",)

    def __init__(
        self,
        *,
        job: str | None,
        timezone: str = "UTC",
        on_missing_input: str = "fail",
        wait_hours: float = 24.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.timezone = timezone
        self.on_missing_input = on_missing_input
        self.wait_hours = wait_hours

    def execute(self, context: Context) -> list[Any]:
        with _reason_pushed(context):
            return self._prepare(context, dt.datetime.now(dt.UTC) + dt.timedelta(hours=self.wait_hours))

    def after_wait(self, context: Context, event: dict[str, Any], until: str) -> list[Any]:
        """Goes on when something lies at the input; until: ISO 8601, the latest moment to wait for."""
        return self._prepare(context, dt.datetime.fromisoformat(until))

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> list[Any]:
        with _reason_pushed(context):
            try:
                return list(super().resume_execution(next_method, next_kwargs, context))
            except TaskDeferralTimeout:
                raise self._waited_in_vain() from None

    def _prepare(self, context: Context, until: dt.datetime) -> list[Any]:
        params: Mapping[str, Any] = context["params"]
        # Not `params`: Airflow has put the unknown keys of the conf among them.
        refuse_unknown_keys(context["dag_run"].conf or {}, context["dag"].params)
        day = date_of_run(
            params.get("date"),
            context.get("data_interval_start"),
            context["dag_run"].run_after,
            self.timezone,
        )
        self.log.info("Date %s: %s", day.date, day.reason)
        overrides = [word for value in params.get(OVERRIDES) or [] for word in ("--set", value)]
        with tempfile.TemporaryDirectory(prefix="staticjob-") as folder:
            job = self.job or _written(folder, job_from_form(params))
            outcome = self.try_step(*self.command, job, "--date", day.date.isoformat(), *overrides)
        missing = missing_input(outcome)
        if missing and self.on_missing_input == "skip":
            self.log.info("No data at %s: all that follows is skipped", missing)
            context["ti"].xcom_push(MISSING, missing)  # a person who ends a run has Airflow skip steps, too
            raise DownstreamTasksSkipped(tasks=sorted(self.get_flat_relative_ids(upstream=False)))
        if missing and self.on_missing_input == "wait":
            self._wait(missing, until)
        return self.pushed(context, self.finished(outcome, self.command[0]))

    def pushed(self, context: Context, result: dict[str, Any]) -> list[Any]:
        """Tell the steps that follow what was prepared; returns what tokenize is mapped over."""
        for key in ("work", "output"):
            context["ti"].xcom_push(key, result[key])
        return list(result["splits"])

    def _wait(self, uri: str, until: dt.datetime) -> NoReturn:
        """Leave the worker; the triggerer calls back when something lies at the URI."""
        from staticjob_airflow.missing import InputTrigger

        left = until - dt.datetime.now(dt.UTC)
        if left <= dt.timedelta():
            raise self._waited_in_vain()
        self.log.info("No data at %s: waiting for it until %s", uri, f"{until:%Y-%m-%d %H:%M} UTC")
        self.defer(
            trigger=InputTrigger(uri, self.aws_conn_id, LOOK_SECONDS),
            method_name=self.after_wait.__name__,
            kwargs={"until": until.isoformat()},
            timeout=left,
        )

    def _waited_in_vain(self) -> AirflowFailException:
        return AirflowFailException(
            f"input.uri: still no data there after {self.wait_hours:g} hours (airflow.wait_hours); clear "
            "this task to wait again"
        )


@contextmanager
def _reason_pushed(context: Context) -> Iterator[None]:
    """Leave why the block failed as an XCom; Airflow removes it when the task is tried again."""
    try:
        yield
    except DownstreamTasksSkipped:
        raise
    except AirflowException as error:
        with suppress(Exception):  # how the task ends must not hang on what only the page needs
            context["ti"].xcom_push(FAILURE, str(error))
        raise


def missing_input(outcome: Outcome) -> str | None:
    """The input.uri where `prepare` found no data; None when it ended otherwise."""
    with suppress(ValueError):
        found: str | None = outcome.result().get("missing")
        return found
    return None


def _written(folder: str, job: dict[str, Any]) -> str:
    """The job as a file: JSON is YAML."""
    path = Path(folder) / "job.yaml"
    path.write_text(json.dumps(job), encoding="utf-8")
    return str(path)


def refuse_unknown_keys(conf: Mapping[str, Any], known: Collection[str]) -> None:
    """Airflow accepts any key of a run's conf in silence; a misspelt one must not be lost."""
    for key in conf:
        if key not in known:
            raise AirflowFailException(f"run conf: unknown key {key!r}{nearest(key, known)}")
