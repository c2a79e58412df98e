"""Second step, mapped by split: texts become parts sorted by token count."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from staticjob_airflow.base import StaticJobOperator


class TokenizeOperator(StaticJobOperator):
    """`staticjob tokenize`: returns counts of rows and tokens.

    work: URI of the job's work prefix, from prepare. split: name of the split.
    """

    template_fields = (*StaticJobOperator.template_fields, "work", "split")

    def __init__(self, *, work: str, split: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.work = work
        self.split = split

    def execute(self, context: Context) -> dict[str, Any]:
        return self.run_step("tokenize", self.work, "--split", self.split)
