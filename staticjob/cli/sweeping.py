"""The commands that run a job at every point of a grid and count what came out."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import click

from staticjob.cli.arguments import job_options
from staticjob.cli.group import command
from staticjob.terminal import console

if TYPE_CHECKING:
    from staticjob.evaluation.results import SweepResult


@command("sweep")
@click.argument("file")
@job_options
@click.option("--prepare", "only_prepare", is_flag=True, help="Pin every point and run none.")
def sweep(
    file: str, overrides: tuple[str, ...], date: dt.datetime | None, only_prepare: bool, as_json: bool
) -> None:
    """Run a job at every point of its grid and count results against gold columns.

    FILE is a job file with the sections sweep and metrics. Run again: finished points are kept.
    """
    from staticjob.evaluation.grid import read_grid
    from staticjob.evaluation.sweep import prepare_points, run_sweep

    grid = read_grid(file, date.date() if date else None, overrides)
    if only_prepare:
        prepared, uri = prepare_points(grid)
        console.emit({"sweep": uri, **prepared.model_dump(mode="json")}, as_json)
    else:
        _emit(*run_sweep(grid), as_json)


@command("tabulate")
@click.argument("sweep")
def tabulate(sweep: str, as_json: bool) -> None:
    """Count the finished points of a sweep: one table, as JSON and HTML beside the outputs.

    SWEEP is the URI that `staticjob sweep --prepare` printed.
    """
    from staticjob.evaluation.sweep import load_sweep
    from staticjob.evaluation.sweep import tabulate as count

    _emit(*count(load_sweep(sweep)), as_json)


def _emit(result: SweepResult, uri: str, as_json: bool) -> None:
    console.emit({**result.model_dump(mode="json"), "table": uri}, as_json, lambda: _show(result, uri))


def _show(result: SweepResult, uri: str) -> None:
    """One table: points by metrics, tokens, time, cost and useful share."""
    from rich.console import Console
    from rich.table import Table

    first = result.points[0]
    table = Table()
    for name in (*first.settings, *first.metrics, "tokens", "seconds", "cost", "useful"):
        table.add_column(name, overflow="fold")  # models may differ in the last letters of their paths
    for point in result.points:
        metrics = [f"{v.value:.3f} ({v.low:.3f} to {v.high:.3f})" for v in point.metrics.values()]
        cost = "" if point.cost is None else f"{point.cost:.4f}"
        spent = [f"{point.useful_tokens:,}", f"{point.seconds:.1f}", cost, f"{point.useful_share:.1%}"]
        table.add_row(*map(str, point.settings.values()), *metrics, *spent)
    Console().print(table)
    click.echo(f"table: {uri}")
