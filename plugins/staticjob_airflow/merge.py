"""Fifth step, mapped by merge group: output files in the input's order, each row once."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from staticjob_airflow.base import StaticJobOperator
from staticjob_airflow.links import ReportLink, RunPageLink


class MergeOperator(StaticJobOperator):
    """`staticjob merge`: returns counts of rows and files.

    work: URI of the job's work prefix, from prepare. group: name of the merge group.
    """

    template_fields = (*StaticJobOperator.template_fields, "work", "group")
    operator_extra_links = (RunPageLink(), ReportLink())

    def __init__(self, *, work: str, group: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.work = work
        self.group = group

    def execute(self, context: Context) -> dict[str, Any]:
        return self.run_step("merge", self.work, "--group", self.group)
