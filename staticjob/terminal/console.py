"""How commands speak: one JSON object on stdout, everything for people on stderr, exit codes."""

from __future__ import annotations

import errno
import io
import json
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import click

from staticjob.errors import InfrastructureError, StaticJobError, Stopped


def setup_logging() -> None:
    """Plain lines on stderr: the same in a terminal, a file and an Airflow task log."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character the terminal has not must not end a run
            stream.reconfigure(errors="replace")
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for noisy in ("botocore", "boto3", "urllib3", "transformers", "httpx", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def emit(payload: dict[str, Any], as_json: bool, show: Callable[[], None] | None = None) -> None:
    """Print the result: one JSON object with --json, else whatever `show` prints on stdout."""
    if as_json:
        click.echo(json.dumps(payload))
    elif show is not None:
        show()
    else:
        for key, value in payload.items():
            click.echo(f"{key}: {value}")


def fail(error: BaseException, as_json: bool) -> NoReturn:
    """Report a failure in one line and leave with its exit code.

    Unexpected errors keep their traceback: they are faults of staticjob, not of its user.
    """
    known = expected(error)
    if known is None:
        traceback.print_exception(error)
        known = InfrastructureError(f"unexpected {type(error).__name__}: {error}")
    click.echo(f"error: {known}", err=True)
    emit_failure(str(known), known.exit_code, as_json, **known.facts())


def emit_failure(message: str, exit_code: int, as_json: bool, **facts: str) -> NoReturn:
    """Leave with `exit_code`; with --json, say why as the one object on stdout."""
    if as_json:
        click.echo(json.dumps({"error": message, "exit_code": exit_code, **facts}))
    sys.exit(exit_code)


def expected(error: BaseException) -> StaticJobError | None:
    """The failure as one of ours; None for what nobody foresaw."""
    if isinstance(error, StaticJobError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Stopped("interrupted; finished batches are kept, run again to go on")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = f" at {error.filename}" if error.filename else ""
        return InfrastructureError(f"no space left on device{where}; free some, then run again to resume")
    if isinstance(error, MemoryError):
        return InfrastructureError("out of host memory; give the task more, then run again to resume")
    return None
