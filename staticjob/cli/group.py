"""The command line as a whole: help, usage errors, and how every command fails."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from staticjob import __version__
from staticjob.errors import Stopped
from staticjob.terminal import console

EPILOG = """
\b
EXIT CODES
  0  done
  1  infrastructure failed (store, network, disk, device, a stalled engine): run again, it resumes
  2  configuration or data do not fit: running again cannot help until they are mended
  3  stopped by SIGTERM or SIGINT: finished batches are kept, run again to go on

\b
ENVIRONMENT
  AWS_*                       credentials, region and AWS_ENDPOINT_URL, as every AWS tool reads them
  STATICJOB_CACHE             where model files are kept (~/.cache/staticjob)
  STATICJOB_SCRATCH           where merge spools rows (the system's temporary folder)
  STATICJOB_FLUSH_SECONDS     seconds of finished batches a killed chunk may lose (30)
  STATICJOB_STALL_SECONDS     silence after which an engine counts as hung (600)
  STATICJOB_STORE_TIMEOUT     seconds a request to the store may take (60)
  STATICJOB_STORE_ATTEMPTS    tries of a request to the store (10)
  STATICJOB_STORE_DELAY       seconds before the second try, doubled for each further one (0.2)
  STATICJOB_DIE_WITH_PARENT   1: end at once when the parent process ends

\b
EXAMPLES
  staticjob plan jobs/docstrings.yaml --date 2026-01-31 --dry-run
  staticjob run jobs/docstrings.yaml --date 2026-01-31 --set limits.max_length=256
  staticjob status s3://embeddings/docstrings/2026-01-31/
"""


class InOrder(click.Group):
    """Lists commands in the order of the work; answers wrong usage as any other failure."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def main(self, args: Sequence[str] | None = None, *extra: Any, **options: Any) -> Any:
        """Run the command line; with --json, a usage error is the one JSON object as well."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(words, *extra, **{**options, "standalone_mode": False})
        except click.UsageError as error:
            error.show()
            console.emit_failure(error.format_message(), error.exit_code, "--json" in words)
        except click.Abort:
            sys.exit(Stopped.exit_code)
        sys.exit(code if isinstance(code, int) else 0)


@click.group(
    cls=InOrder,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)
@click.version_option(__version__, prog_name="staticjob")
def main() -> None:
    """Offline inference over a dataset in static shapes.

    A job reads an input folder, runs a model over every row and writes a mirrored output folder:
    the same files, the same rows, the same order, each row with a result or a status that says
    why not. Nothing is spent before the plan is known, and running a job again resumes it.

    JOB is a job file (YAML). WORK is the work URI that `prepare` prints; the steps after it take
    nothing else. URIs are s3://bucket/prefix or local paths.
    """


def command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """A subcommand with --json whose failures become one line and an exit code."""

    def decorate(body: Callable[..., None]) -> click.Command:
        @functools.wraps(body)
        def run(as_json: bool, **arguments: Any) -> None:
            console.setup_logging()
            # A StopFlag ends long work at a safe point; everything else may be left at any moment.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                if os.environ.get("STATICJOB_DIE_WITH_PARENT"):
                    from staticjob.running.watch import die_with_parent

                    die_with_parent()
                body(as_json=as_json, **arguments)
            except (Exception, KeyboardInterrupt) as error:  # the one place where failures end
                console.fail(error, as_json)

        run = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")(run)
        return click.command(name)(run)

    return decorate
