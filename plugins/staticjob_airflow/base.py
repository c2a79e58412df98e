"""What every step shares: run the command line, stream its log, translate its exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from staticjob.errors import ConfigError, Stopped
from staticjob_airflow import metrics
from staticjob_airflow.command import Command, Outcome
from staticjob_airflow.credentials import step_environment
from staticjob_airflow.orphans import dying_with_parent


class StaticJobOperator(BaseOperator):
    """Runs one step of a job as `python -m staticjob … --json` in a fresh interpreter.

    python: the interpreter (templated). Default: the environment variable STATICJOB_PYTHON, else
        the one Airflow runs on. It needs all that the steps need, torch too; Airflow's does not.
    stop_grace: seconds a killed step has to flush what it finished, between SIGTERM and SIGKILL.
        Airflow itself ends a task 5 seconds after asking it to stop.
    aws_conn_id: connection (templated) whose credentials, endpoint and region the step gets for the
        store. Default: those of the worker's environment.

    A retry runs the same command again: finished work is found by its content and kept.
    Exit code 1 (infrastructure), 3 (stopped) and death by a signal fail the task, to be retried;
    exit code 2 (configuration or data) fails it at once, without a retry.
    """

    # What is templated stands in the serialized DAG too: the run page looks there for the connection.
    template_fields = ("python", "aws_conn_id")
    ui_color = "#e3f2ef"

    def __init__(
        self,
        *,
        python: str | None = None,
        stop_grace: float = 4.0,
        aws_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.python = python
        self.aws_conn_id = aws_conn_id
        self.stop_grace = stop_grace
        self._command: Command | None = None

    def pre_execute(self, context: Context) -> None:
        metrics.step_starts(self.dag_id, self.task_id, context["ti"].try_number)

    def run_step(self, *args: str) -> dict[str, Any]:
        """Run `staticjob *args --json` to its end and return the object it printed."""
        return self.finished(self.try_step(*args), args[0])

    def finished(self, outcome: Outcome, step: str) -> dict[str, Any]:
        """The object that a step printed; raises what `result_of` raises where it did not succeed."""
        result = result_of(outcome, f"staticjob {step}")
        self.log.info("%s", json.dumps(result))
        return result

    def try_step(self, *args: str) -> Outcome:
        """Run `staticjob *args --json` and return how it ended, well or not."""
        python = self.python or os.environ.get("STATICJOB_PYTHON") or sys.executable
        argv = [python, "-m", "staticjob", *args, "--json"]
        with step_environment(self.aws_conn_id) as environment:
            self._command = Command(argv, environment, self.stop_grace)
            # Airflow's log view folds what lies between these lines; the step's end stays in sight.
            self.log.info("::group::staticjob %s", args[0])
            self.log.info("$ %s", " ".join(argv))
            try:
                with dying_with_parent():
                    return self._command.run(self.log.info)
            except OSError as error:
                raise AirflowFailException(
                    f"{python}: cannot be started ({error.strerror}); set STATICJOB_PYTHON to an interpreter "
                    "that has staticjob"
                ) from None
            finally:
                self.log.info("::endgroup::")

    def on_kill(self) -> None:
        """Stop the command; `execute` then goes on, finds it stopped and raises."""
        if self._command is not None:
            self._command.stop()


def result_of(outcome: Outcome, step: str) -> dict[str, Any]:
    """The result of a step that succeeded; raises the exception Airflow's retries understand."""
    if outcome.stopped or outcome.code == Stopped.exit_code:
        raise AirflowException(f"{step}: stopped before its end; finished work is kept for the next try")
    if outcome.code < 0:
        raise AirflowException(
            f"{step}: ended by {signal.Signals(-outcome.code).name}; finished work is kept for the next try"
        )
    if outcome.code == ConfigError.exit_code:
        raise AirflowFailException(f"{step}: {outcome.reason}")
    if outcome.code != 0:
        raise AirflowException(f"{step}: exit code {outcome.code}: {outcome.reason}")
    try:
        return outcome.result()
    except ValueError as error:
        raise AirflowFailException(f"{step}: stdout is not one JSON object ({error})") from None
