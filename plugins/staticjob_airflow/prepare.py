"""First step: pin the input and the model, and name the splits to tokenize."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from staticjob_airflow.adhoc import job_from_form
from staticjob_airflow.base import StaticJobOperator
from staticjob_airflow.dates import date_of_run

OVERRIDES = "set"


class PrepareOperator(StaticJobOperator):
    """`staticjob prepare`: returns the names of the splits; pushes the URIs `work` and `output`.

    job: path of the job file; None takes the job from the run's form (see `adhoc.py`).
    timezone: of the schedule; decides which day a run belongs to.
    """

    template_fields = (*StaticJobOperator.template_fields, "job")

    def __init__(self, *, job: str | None, timezone: str = "UTC", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.timezone = timezone

    def execute(self, context: Context) -> list[str]:
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
            result = self.run_step("prepare", job, "--date", day.date.isoformat(), *overrides)
        for key in ("work", "output"):
            context["ti"].xcom_push(key, result[key])
        return list(result["splits"])


def _written(folder: str, job: dict[str, Any]) -> str:
    """The job as a file: JSON is YAML."""
    path = Path(folder) / "job.yaml"
    path.write_text(json.dumps(job), encoding="utf-8")
    return str(path)


def refuse_unknown_keys(conf: Mapping[str, Any], known: Collection[str]) -> None:
    """Airflow accepts any key of a run's conf in silence; a misspelt one must not be lost."""
    for key in conf:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(sorted(known))}"
            raise AirflowFailException(f"run conf: unknown key {key!r}; {hint}")
