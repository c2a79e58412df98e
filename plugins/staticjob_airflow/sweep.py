"""The DAG of a sweep: every step is mapped over all points, then one table is made of them.

prepare → tokenize[points × splits] → plan[points] → chunk[points × packs] → merge[points × groups]
        → finish_point[points] → finish
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import DAG, Asset, AssetAlias, Context, task

from staticjob.config.airflow import AirflowConfig
from staticjob.evaluation.grid import Grid
from staticjob_airflow.base import StaticJobOperator
from staticjob_airflow.chunk import ChunkOperator
from staticjob_airflow.dag import AFTER, asset_of, empty_dag, file_options, prepare_options
from staticjob_airflow.finish import FinishOperator
from staticjob_airflow.links import ReportLink
from staticjob_airflow.merge import MergeOperator
from staticjob_airflow.names import CHUNK, FINISH, FINISH_POINT
from staticjob_airflow.plan import PlanOperator
from staticjob_airflow.prepare import PrepareOperator
from staticjob_airflow.tokenize import TokenizeOperator


def sweep_dag(path: str, grid: Grid, text: str) -> DAG:
    """The DAG of a sweep's file: one run plans and runs every point and ends in one table."""
    job = grid.base
    settings = job.airflow or AirflowConfig()
    names = ", ".join(grid.points[0].settings)
    with empty_dag(
        job.name,
        settings,
        description=f"{job.task}: {len(grid.points)} points of {names}",
        **file_options(settings, text),
    ) as dag:
        store = {"aws_conn_id": settings.aws_conn_id}
        prepare = PreparePointsOperator(job=path, **prepare_options(settings), **store)
        points = list_points(prepare.output["works"])
        tokenize = TokenizeOperator.partial(
            task_id="tokenize", map_index_template="{{ task.split }}", **store
        ).expand_kwargs(prepare.output)
        plan = PlanOperator.partial(task_id="plan", **store, **AFTER).expand(work=points)
        chunk = ChunkOperator.partial(
            task_id=CHUNK,
            pool=settings.pool,
            queue=settings.queue,
            map_index_template="{{ task.pack.name }}",
            **store,
        ).expand_kwargs(list_packs(points, plan.output))
        merge = MergeOperator.partial(
            task_id="merge", map_index_template="{{ task.group }}", **store, **AFTER
        ).expand_kwargs(list_groups(points, plan.output["groups"]))
        finish = FinishOperator.partial(task_id=FINISH_POINT, **store, **AFTER).expand(work=points)
        table = TabulateOperator(
            task_id=FINISH,
            sweep=prepare.output["sweep"],
            asset=asset_of(job),
            outlets=[AssetAlias(job.name)],
            **store,
            **AFTER,
        )
        tokenize >> plan >> chunk >> merge >> finish >> table
    return dag


class PreparePointsOperator(PrepareOperator):
    """`staticjob sweep --prepare`: returns `{work, split}` per split to tokenize, over all points.

    Pushes `sweep`, the URI the sweep is kept at, its `output` folder, and the points' `works`.
    """

    command = ("sweep", "--prepare")

    def pushed(self, context: Context, result: dict[str, Any]) -> list[Any]:
        for key in ("sweep", "output"):
            context["ti"].xcom_push(key, result[key])
        points = result["points"]
        context["ti"].xcom_push("works", [point["work"] for point in points])
        return [{"work": point["work"], "split": split} for point in points for split in point["splits"]]


class TabulateOperator(StaticJobOperator):
    """`staticjob tabulate`: returns the table of all points, and emits it with the output asset.

    sweep: URI of the prepared sweep, from prepare. asset: what its outlets, aliases all, stand for.
    """

    template_fields = (*StaticJobOperator.template_fields, "sweep")
    operator_extra_links = (ReportLink(),)

    def __init__(self, *, sweep: str, asset: Asset, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sweep = sweep
        self.asset = asset

    def execute(self, context: Context) -> dict[str, Any]:
        result = self.run_step("tabulate", self.sweep)
        for outlet in self.outlets:
            context["outlet_events"][outlet].add(self.asset, extra=result)
        return result


@task(task_id="points")
def list_points(works: Sequence[str]) -> list[str]:
    """Airflow maps over what a task returns: the points' work prefixes need a task of their own."""
    return list(works)


@task(task_id="packs")
def list_packs(works: Sequence[str], plans: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The packs of all points' plans."""
    return [{"work": work, "pack": pack} for work, packs in zip(works, plans, strict=True) for pack in packs]


@task(task_id="groups")
def list_groups(works: Sequence[str], plans: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The merge groups of all points' plans."""
    return [
        {"work": work, "group": group} for work, groups in zip(works, plans, strict=True) for group in groups
    ]
