"""What several commands take: a job file with its overrides, or a work URI."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from staticjob.errors import ConfigError

if TYPE_CHECKING:
    from staticjob.config.job import JobConfig
    from staticjob.layout import Work
    from staticjob.records.prepared import Prepared


def job_options(body: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that takes a job file."""
    body = click.option("--date", type=click.DateTime(["%Y-%m-%d"]), help="Fills {date} in the job's URIs.")(
        body
    )
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override a field, e.g. limits.max_length=256.",
    )(body)


def read_job(path: str, overrides: tuple[str, ...], date: dt.datetime | None) -> JobConfig:
    """The job file of a command, overridden and dated; ConfigError for a sweep's file, which is many jobs."""
    from staticjob.config.job_file import load_job, read_job_file
    from staticjob.evaluation.grid import is_sweep

    if is_sweep(read_job_file(path)):
        raise ConfigError(f"{path}: a sweep's file; `staticjob sweep {path}` runs it")
    return load_job(path, overrides=overrides, date=date.date() if date else None)


def open_work(uri: str) -> tuple[Work, Prepared]:
    """The work prefix of a command and its job."""
    from staticjob.layout import Work
    from staticjob.steps import load_prepared

    prepared = load_prepared(Work(uri))
    return Work(uri, prepared.tokens), prepared
