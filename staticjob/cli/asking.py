"""The questions one asks about a job, running or finished."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from staticjob.cli.arguments import open_work
from staticjob.cli.group import command
from staticjob.errors import DataError
from staticjob.terminal import console

if TYPE_CHECKING:
    from staticjob.replay import ReplayReport, RowVerdict
    from staticjob.verify import VerifyReport


@command("status")
@click.argument("uri")
def status(uri: str, as_json: bool) -> None:
    """Say how far a job is, from the objects its chunks write.

    URI is the output folder or a work URI.
    """
    from staticjob.status import read_status
    from staticjob.terminal.payloads import plan_json, status_json
    from staticjob.terminal.progress import show_status

    found = read_status(uri)
    planned = plan_json(found.plan) if found.plan else {}
    console.emit({**planned, **status_json(found)}, as_json, lambda: show_status(found))


@command("verify")
@click.argument("uri")
@click.option("--rows", type=click.IntRange(min=1), default=64, show_default=True, help="Rows to sample.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which rows are sampled.")
@click.option(
    "--row",
    "named",
    multiple=True,
    metavar="FILE:N",
    help="Only this row: N is its index in the output file, from 0; may be repeated.",
)
def verify(uri: str, rows: int, seed: int, named: tuple[str, ...], as_json: bool) -> None:
    """Run sampled or named rows again beside other neighbours and compare bits with the output.

    URI is the output folder or a work URI. Exit code 2 when a row differs beyond rounding.
    """
    from staticjob import steps
    from staticjob.replay import named_row, replay
    from staticjob.status import find_work
    from staticjob.verify import verify as verify_rows

    place, prepared = open_work(find_work(uri).uri)
    plan = steps.load_plan(place)
    report: ReplayReport | VerifyReport
    if named:
        report = replayed = replay(place, prepared, plan, [named_row(text, prepared, plan) for text in named])
        console.emit(report.model_dump(mode="json"), as_json, lambda: _show_named(replayed))
    else:
        report = sampled = verify_rows(place, prepared, plan, rows, seed)
        console.emit(report.model_dump(mode="json"), as_json, lambda: _show_sampled(sampled))
    try:
        report.check()
    except DataError as error:  # the one JSON object is out already: only the line and the code are left
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


def _show_sampled(report: VerifyReport) -> None:
    click.echo(f"{report.rows} rows of {len(report.rungs)} rungs, each run again in two other batches:")
    for rung in report.rungs:
        click.echo(
            f"  L{rung.length:<5} {rung.equal} of {rung.compared} bit-equal, "
            f"largest difference {rung.max_difference:.3g}"
        )
    click.echo(f"{report.equal} of {report.compared} results bit-equal on {report.device} ({report.dtype})")


def _show_named(report: ReplayReport) -> None:
    for row in report.rows:
        click.echo(f"{row.file} row {row.row}: {_outcome(row)}")
    if report.device:
        click.echo(f"each run again in two other batches on {report.device} ({report.dtype})")


def _outcome(row: RowVerdict) -> str:
    if row.bit_equal is None:
        engine = f" by {row.engine}" if row.engine else ""
        return f"not run again: status {row.status}{engine}, no result of the static engine"
    if row.bit_equal:
        return "bit-equal"
    return "differs in " + ", ".join(_difference(name, size) for name, size in row.differing.items())


def _difference(column: str, size: float | None) -> str:
    if size is None:
        return f"{column} (not finite now)"
    return f"{column} (by up to {size:.3g})" if size else column


@command("report")
@click.argument("uri")
def report(uri: str, as_json: bool) -> None:
    """Build the report of a job again, finished or not, and say where it is.

    URI is the output folder or a work URI.
    """
    from staticjob import steps
    from staticjob.layout import Output
    from staticjob.status import find_work

    place, prepared = open_work(find_work(uri).uri)
    steps.report(place, prepared, steps.load_plan(place))
    output = Output(prepared.config.output.uri)
    console.emit({"report": output.report_html, "report_json": output.report_json}, as_json)
