"""The command line: every step of a job, and the questions one asks about it.

Kept free of heavy imports: `--help` answers at once, each command loads what it needs.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from staticjob import __version__
from staticjob.errors import ConfigError, DataError, Stopped
from staticjob.terminal import console

if TYPE_CHECKING:
    from staticjob.config import JobConfig
    from staticjob.layout import Work
    from staticjob.records import Manifest, Plan, Prepared

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
  STATICJOB_STORE_ATTEMPTS    tries of a request to the store (8)
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
        return main.command(name)(run)

    return decorate


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
    """The job file of a command, overridden and dated."""
    from staticjob.config import load_job

    return load_job(path, overrides=overrides, date=date.date() if date else None)


def open_work(uri: str) -> tuple[Work, Prepared]:
    """The work prefix of a command and its job."""
    from staticjob.layout import Work
    from staticjob.steps import load_prepared

    work = Work(uri)
    return work, load_prepared(work)


@command("validate")
@click.argument("job")
@job_options
def validate(job: str, overrides: tuple[str, ...], date: dt.datetime | None, as_json: bool) -> None:
    """Check a job file without reading data.

    Prints the job with all defaults filled in; an unknown key is refused with the nearest valid one.
    """
    from staticjob.config import job_with_defaults

    config = job_with_defaults(job, overrides=overrides, date=date.date() if date else None)
    dump = config.model_dump(mode="json")

    def show() -> None:
        import yaml

        click.echo(yaml.safe_dump(dump, sort_keys=False, allow_unicode=True), nl=False)

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
    from staticjob.prepare import prepare

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
            made = draft(*prepare(read_job(target, overrides, date), Output(folder))[:2])
        work_uri = None
    else:
        place, prepared, _ = prepare(read_job(target, overrides, date), run=False)
        made = draft(place, prepared)
        work_uri = place.uri
    console.emit({"work": work_uri, **plan_json(made)}, as_json, lambda: _show_plan(made))


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as the object that `plan --json` prints."""
    from staticjob.plan import pack_name

    rungs = [rung.model_dump(include={"length", "batch", "rows", "batches"}) for rung in plan.rungs]
    return {
        "fingerprint": plan.fingerprint,
        "token_budget": plan.token_budget,
        "rows": {str(status): count for status, count in plan.statuses.items()},
        "ledger": plan.ledger.model_dump(exclude={"finished"}),
        "useful_share": plan.ledger.useful_share,
        "rungs": rungs,
        "orders": plan.orders.model_dump(),
        "memory": plan.memory.model_dump(),
        "forecast": plan.forecast.model_dump(),
        "chunks": len(plan.chunks),
        "packs": [
            {"index": i, "name": pack_name(plan, i), "chunks": list(pack)}
            for i, pack in enumerate(plan.packs)
        ],
        "groups": [group.id for group in plan.groups],
    }


def _show_plan(plan: Plan) -> None:
    from rich.console import Console

    from staticjob.terminal.show import show_plan

    show_plan(plan, Console())


@command("chunk")
@click.argument("work")
@click.option("--chunk", "chunks", multiple=True, help="Chunk to run; may be repeated.")
@click.option("--pack", type=int, help="Run all chunks of this pack of the plan.")
def chunk(work: str, chunks: tuple[str, ...], pack: int | None, as_json: bool) -> None:
    """Run chunks on the engine.

    Committed chunks are kept; a half-finished one goes on at its first unflushed batch.
    """
    from staticjob import steps
    from staticjob.records import Ledger
    from staticjob.running.pack import run_pack
    from staticjob.running.progress import Reporter
    from staticjob.running.watch import StopFlag

    place, prepared = open_work(work)
    made = steps.load_plan(place)
    if pack is not None:
        if not 0 <= pack < len(made.packs):
            raise ConfigError(f"--pack {pack}: the plan has packs 0 to {len(made.packs) - 1}")
        chunks = (*chunks, *made.packs[pack])
    if not chunks:
        raise ConfigError("nothing to run: give --chunk ID or --pack N")
    with StopFlag() as stop, Reporter(made, chunks) as reporter:
        result = run_pack(place, prepared, made, chunks, stop, reporter)
    ledger = sum((c.ledger for c in result.commits), Ledger())
    console.emit(
        {
            "chunks": {"done": len(result.commits), "reused": result.reused, "total": len(set(chunks))},
            "rows": sum(c.rows for c in result.commits),
            "ledger": ledger.model_dump(exclude={"finished"}),
            "kept_batches": sum(c.kept_batches for c in result.commits),
            "seconds": sum(c.seconds for c in result.commits),
        },
        as_json,
    )


@command("merge")
@click.argument("work")
@click.option("--group", "groups", multiple=True, help="Merge group; may be repeated. Default: all.")
def merge(work: str, groups: tuple[str, ...], as_json: bool) -> None:
    """Write output files in the input's order from committed chunks.

    Refuses, naming rows, when a row is missing or doubled.
    """
    from staticjob import steps

    place, prepared = open_work(work)
    commits, reused = steps.merge(place, prepared, steps.load_plan(place), groups)
    console.emit(
        {
            "groups": len(commits),
            "reused": reused,
            "files": sum(len(c.files) for c in commits),
            "rows": sum(f.rows for c in commits for f in c.files),
        },
        as_json,
    )


@command("finish")
@click.argument("work")
def finish(work: str, as_json: bool) -> None:
    """Check the whole output, write manifest and report, and `_SUCCESS` last."""
    from staticjob import steps

    place, prepared = open_work(work)
    manifest, reused = steps.finish(place, prepared, steps.load_plan(place))
    console.emit({**manifest_json(prepared, manifest), "reused": reused}, as_json)


def manifest_json(prepared: Prepared, manifest: Manifest) -> dict[str, Any]:
    """A finished job as the object that `finish --json` and `run --json` print."""
    from staticjob.layout import Output

    output = Output(prepared.config.output.uri)
    return {
        "output": output.uri,
        "report": output.report_html,
        "rows": manifest.rows,
        "statuses": {str(status): count for status, count in manifest.statuses.items()},
        "ledger": manifest.ledger.model_dump(exclude={"finished"}),
        "useful_share": manifest.ledger.useful_share,
        "seconds": manifest.seconds,
        "cost": manifest.cost,
        "fingerprint": manifest.fingerprint,
    }


@command("run")
@click.argument("job")
@job_options
def run(job: str, overrides: tuple[str, ...], date: dt.datetime | None, as_json: bool) -> None:
    """Do the whole job on this machine: prepare, tokenize, plan, chunk, merge, finish.

    The same steps that Airflow's tasks run, in one process. Run again after anything went
    wrong: finished work is kept.
    """
    from staticjob.local_run import run_job

    outcome = run_job(read_job(job, overrides, date))
    payload = {
        "state": "done",
        "chunks": {"done": outcome.done, "reused": outcome.reused, "total": outcome.done},
        "work": outcome.work.uri,
        **manifest_json(outcome.prepared, outcome.manifest),
    }
    console.emit(payload, as_json)


@command("status")
@click.argument("uri")
def status(uri: str, as_json: bool) -> None:
    """Say how far a job is, from the objects its chunks write.

    URI is the output folder or a work URI.
    """
    from staticjob.status import read_status, show_status

    found = read_status(uri)
    console.emit(found.payload(), as_json, lambda: show_status(found))


@command("verify")
@click.argument("uri")
@click.option("--rows", type=click.IntRange(min=1), default=64, show_default=True, help="Rows to sample.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which rows are sampled.")
def verify(uri: str, rows: int, seed: int, as_json: bool) -> None:
    """Run sampled rows again beside other neighbours and compare bits with the output.

    URI is the output folder or a work URI. Exit code 2 when a row differs beyond rounding.
    """
    from staticjob import steps
    from staticjob.status import find_work
    from staticjob.verify import verify as verify_rows

    place, prepared = open_work(find_work(uri).uri)
    report = verify_rows(place, prepared, steps.load_plan(place), rows, seed)

    def show() -> None:
        click.echo(f"{report.rows} rows of {len(report.rungs)} rungs, each run again in two other batches:")
        for rung in report.rungs:
            click.echo(
                f"  L{rung.length:<5} {rung.equal} of {rung.compared} bit-equal, "
                f"largest difference {rung.max_difference:.3g}"
            )
        click.echo(
            f"{report.equal} of {report.compared} results bit-equal on {report.device} ({report.dtype})"
        )

    console.emit(report.model_dump(mode="json"), as_json, show)
    try:
        report.check()
    except DataError as error:  # the one JSON object is out already: only the line and the code are left
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


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
