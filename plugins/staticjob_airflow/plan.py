"""Third step: decide everything the run will do, before a device is touched."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from staticjob_airflow.base import StaticJobOperator


class PlanOperator(StaticJobOperator):
    """`staticjob plan`: returns one `{name, index}` per pack of chunks; pushes the merge `groups`.

    work: URI of the job's work prefix, from prepare.
    """

    template_fields = (*StaticJobOperator.template_fields, "work")

    def __init__(self, *, work: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.work = work

    def execute(self, context: Context) -> list[dict[str, Any]]:
        result = self.run_step("plan", self.work)
        context["ti"].xcom_push("groups", list(result["groups"]))
        return [{"name": pack["name"], "index": pack["index"]} for pack in result["packs"]]
