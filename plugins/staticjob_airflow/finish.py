"""Last step: report, manifest and `_SUCCESS`; then the asset event."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, Context

from staticjob_airflow import metrics
from staticjob_airflow.base import StaticJobOperator
from staticjob_airflow.links import ReportLink, RunPageLink


class FinishOperator(StaticJobOperator):
    """`staticjob finish`: returns URIs and counts, and emits them with the output asset and as metrics.

    work: URI of the job's work prefix, from prepare.
    asset: what its outlets, aliases all, stand for; None: an asset at the place it wrote to.
    """

    template_fields = (*StaticJobOperator.template_fields, "work")
    operator_extra_links = (RunPageLink(), ReportLink())

    def __init__(self, *, work: str, asset: Asset | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.work = work
        self.asset = asset

    def execute(self, context: Context) -> dict[str, Any]:
        result = self.run_step("finish", self.work)
        metrics.run_finished(self.dag_id, result)
        for outlet in self.outlets:
            context["outlet_events"][outlet].add(self.asset or Asset(result["output"]), extra=result)
        return result
