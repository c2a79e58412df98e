"""The commands up to the plan: nothing is spent on the model yet."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import click

from staticjob.cli.arguments import job_options, open_work, read_job
from staticjob.cli.group import command
from staticjob.errors import ConfigError
from staticjob.terminal import console

if TYPE_CHECKING:
    from staticjob.layout import Work
    from staticjob.records.plan import Plan
    from staticjob.records.prepared import Prepared


@command("validate")
@click.argument("job")
@job_options
def validate(job: str, overrides: tuple[str, ...], date: dt.datetime | None, as_json: bool) -> None:
    """Check a job file without reading data.

    Prints the job with all defaults filled in; an unknown key is refused with the nearest valid one.
    Of a sweep's file every point is checked and printed.
    """
    from staticjob.config.job_file import job_with_defaults, read_job_file
    from staticjob.evaluation.grid import is_sweep, read_grid
    from staticjob.models.model_files import find_here

    if is_sweep(read_job_file(job)):
        grid = read_grid(job, date.date() if date else dt.date.min, overrides)
        configs = [point.config for point in grid.points]
        dump = {"sweep": [point.settings for point in grid.points], **grid.base.model_dump(mode="json")}
        dump["metrics"] = [metric.model_dump(mode="json") for metric in grid.metrics]
    else:
        config = job_with_defaults(job, overrides=overrides, date=date.date() if date else None)
        configs = [config]
        dump = config.model_dump(mode="json")
    for path in {config.model.path for config in configs}:
        try:
            find_here(path)  # refuses an installed package that lacks the directory
        except ConfigError as error:
            raise ConfigError(f"{job}: {error}") from None

    def show() -> None:
        import yaml

        click.echo(yaml.safe_dump(dump, sort_keys=False, allow_unicode=True), nl=False)
        click.echo(f"{job}: valid", err=True)

    console.emit(dump, as_json, show)


@command("prepare")
@click.argument("job")
@job_options
def prepare_(job: str, overrides: tuple[str, ...], date: dt.datetime | None, as_json: bool) -> None:
    """Pin the input objects and the model, and open the work prefix.

    The first step of a run. Prints the work URI and the splits to tokenize.
    """
    from staticjob.prepare import prepare

    work, prepared, reused = prepare(read_job(job, overrides, date))
    console.emit(
        {
            "work": work.uri,
            "output": prepared.config.output.uri,
            "fingerprint": prepared.fingerprint,
            "files": len(prepared.files),
            "splits": [split.id for split in prepared.splits],
            "reused": reused,
        },
        as_json,
    )


@command("tokenize")
@click.argument("work")
@click.option("--split", "splits", multiple=True, help="Split to tokenize; may be repeated. Default: all.")
def tokenize(work: str, splits: tuple[str, ...], as_json: bool) -> None:
    """Tokenize splits into parts sorted by token count.

    A split that is tokenized already is left as it is.
    """
    from staticjob import steps

    place, prepared = open_work(work)
    stats, reused = steps.tokenize(place, prepared, splits or [split.id for split in prepared.splits])
    sizes = [steps.split_size(s) for s in stats]
    console.emit(
        {
            "splits": len(stats),
            "reused": reused,
            "rows": sum(rows for rows, _ in sizes),
            "tokens": sum(tokens for _, tokens in sizes),
        },
        as_json,
    )


@command("plan")
@click.argument("target", metavar="JOB|WORK")
@job_options
@click.option("--dry-run", is_flag=True, help="Write nothing: forecast in a temporary folder and forget it.")
@click.option(
    "--calibrate/--no-calibrate", default=True, help="Measure speed here when no run has. [default: yes]"
)
def plan(
    target: str,
    overrides: tuple[str, ...],
    date: dt.datetime | None,
    dry_run: bool,
    calibrate: bool,
    as_json: bool,
) -> None:
    """Forecast the run: rows, ladder, slots, memory, time and cost.

    Needs no GPU. With a job file it prepares and tokenizes first; with a work URI it plans what
    is tokenized there. Nothing is spent on the model beyond a calibration of a few seconds.
    """
    import tempfile

    from staticjob import steps
    from staticjob.layout import Output
    from staticjob.merging.audit import warn_of_errors
    from staticjob.prepare import prepare
    from staticjob.terminal.payloads import plan_json

    def draft(work: Work, prepared: Prepared) -> Plan:
        steps.tokenize(work, prepared, [split.id for split in prepared.splits])
        return steps.plan(work, prepared, calibrate)[0]

    if not target.endswith((".yaml", ".yml")) and not Path(target).is_file():
        if overrides or date:
            raise ConfigError(f"{target}: a work URI holds its job already; --set and --date need a job file")
        place, prepared = open_work(target)
        made = (
            steps.draft_plan(place, prepared, calibrate)
            if dry_run
            else steps.plan(place, prepared, calibrate)[0]
        )
        work_uri: str | None = place.uri
    elif dry_run:
        with tempfile.TemporaryDirectory(prefix="staticjob-plan-") as folder:
            place, prepared, _ = prepare(read_job(target, overrides, date), Output(folder))
            made = draft(place, prepared)
        work_uri = None
    else:
        place, prepared, _ = prepare(read_job(target, overrides, date), run=False)
        made = draft(place, prepared)
        work_uri = place.uri
    steps.warn_without_rows(prepared, made)
    warn_of_errors(prepared, made)
    if as_json:
        _show_plan(made, stderr=True)  # the task's log under Airflow, where people look for the forecast
    console.emit({"work": work_uri, **plan_json(made)}, as_json, lambda: _show_plan(made))


def _show_plan(plan: Plan, *, stderr: bool = False) -> None:
    from rich.console import Console

    from staticjob.terminal.show import show_plan

    show_plan(plan, Console(stderr=stderr))
