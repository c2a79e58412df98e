"""The command that runs a job at every point of a grid."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import click

from staticjob.cli.group import command
from staticjob.terminal import console

if TYPE_CHECKING:
    from staticjob.evaluation.sweep import SweepResult


@command("sweep")
@click.argument("file")
@click.option("--date", type=click.DateTime(["%Y-%m-%d"]), help="Fills {date} in the job's URIs.")
def sweep(file: str, date: dt.datetime | None, as_json: bool) -> None:
    """Run a job at every point of its grid and count results against gold columns.

    FILE is a job file with the sections sweep and metrics. Run again: finished points are kept.
    """
    from staticjob.evaluation.sweep import run_sweep

    result, uri = run_sweep(file, date.date() if date else None)
    console.emit({**result.model_dump(mode="json"), "sweep": uri}, as_json, lambda: _show(result, uri))


def _show(result: SweepResult, uri: str) -> None:
    """One table: points by metrics, tokens, time, cost and useful share."""
    from rich.console import Console
    from rich.table import Table

    first = result.points[0]
    table = Table()
    for name in (*first.settings, *first.metrics, "tokens", "seconds", "cost", "useful"):
        table.add_column(name)
    for point in result.points:
        metrics = [f"{v.value:.3f} ({v.low:.3f} to {v.high:.3f})" for v in point.metrics.values()]
        cost = "" if point.cost is None else f"{point.cost:.4f}"
        spent = [f"{point.useful_tokens:,}", f"{point.seconds:.1f}", cost, f"{point.useful_share:.1%}"]
        table.add_row(*map(str, point.settings.values()), *metrics, *spent)
    Console().print(table)
    click.echo(f"sweep: {uri}")
