"""Fourth step, mapped by pack: run chunks on the device, resuming where a try before stopped."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from airflow.sdk import Context

from staticjob_airflow import metrics
from staticjob_airflow.base import StaticJobOperator
from staticjob_airflow.links import RunPageLink


class ChunkOperator(StaticJobOperator):
    """`staticjob chunk`: returns counts of rows and chunks.

    work: URI of the job's work prefix, from prepare. pack: `{name, index}` from plan.

    A chunk is known by its content, never by the map index or the try: a retry keeps its finished
    batches, and a changed plan cannot put a result on another chunk.
    """

    template_fields = (*StaticJobOperator.template_fields, "work", "pack")
    operator_extra_links = (RunPageLink(),)

    def __init__(self, *, work: str, pack: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.work = work
        self.pack = pack

    def execute(self, context: Context) -> dict[str, Any]:
        pack = int(self.pack["index"])
        with ExitStack() as stack:
            if metrics.wanted():
                # Deferred: it reads the store, and the DAG files load nothing that does.
                from staticjob_airflow.live import active_rows_sent

                stack.enter_context(active_rows_sent(self.dag_id, self.work, pack, self.aws_conn_id))
            return self.run_step("chunk", self.work, "--pack", str(pack))
