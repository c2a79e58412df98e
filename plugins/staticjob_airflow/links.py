"""Buttons on a task instance that lead to the run page and to the report."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.configuration import conf

from staticjob_airflow.names import CHUNK, MOUNT

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


def page_url(page: str, dag_id: str, run_id: str, **more: str) -> str:
    """Address of a page of the run, on the host where people reach Airflow: workers need not know it."""
    prefix = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{prefix}/{MOUNT}/{page}?{urlencode({'dag_id': dag_id, 'run_id': run_id, **more})}"


class RunPageLink(BaseOperatorLink):
    """The run page; from a chunk task, with the chunks of that task."""

    name = "Static batch"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        more = {"task": str(ti_key.map_index)} if ti_key.task_id == CHUNK else {}
        return page_url("run", ti_key.dag_id, ti_key.run_id, **more)


class ReportLink(BaseOperatorLink):
    """The report of the run, once `finish` has written it."""

    name = "Report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return page_url("report", ti_key.dag_id, ti_key.run_id)
