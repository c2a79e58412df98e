"""The commands that do the work after the plan, and the one that does all of it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import click

from staticjob.cli.arguments import job_options, open_work, read_job
from staticjob.cli.group import command
from staticjob.errors import ConfigError
from staticjob.terminal import console

if TYPE_CHECKING:
    from staticjob.local_run import Outcome


@command("chunk")
@click.argument("work")
@click.option("--chunk", "chunks", multiple=True, help="Chunk to run; may be repeated.")
@click.option("--pack", type=int, help="Run all chunks of this pack of the plan.")
def chunk(work: str, chunks: tuple[str, ...], pack: int | None, as_json: bool) -> None:
    """Run chunks on the engine.

    Committed chunks are kept; a half-finished one goes on at its first unflushed batch.
    """
    from staticjob import steps
    from staticjob.ledger import Ledger
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
            "ledger": ledger.model_dump(),
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
    from staticjob.finish import finish as finish_job
    from staticjob.terminal.payloads import manifest_json

    place, prepared = open_work(work)
    manifest, reused = finish_job(place, prepared, steps.load_plan(place))
    console.emit({**manifest_json(prepared, manifest), "reused": reused}, as_json)


@command("run")
@click.argument("job")
@job_options
def run(job: str, overrides: tuple[str, ...], date: dt.datetime | None, as_json: bool) -> None:
    """Do the whole job on this machine: prepare, tokenize, plan, chunk, merge, finish.

    The same steps that Airflow's tasks run, in one process. Run again after anything went
    wrong: finished work is kept.
    """
    from staticjob import steps
    from staticjob.local_run import run_job
    from staticjob.terminal.payloads import manifest_json, plan_json

    outcome = run_job(read_job(job, overrides, date))
    finished = manifest_json(outcome.prepared, outcome.manifest)
    rows = finished.pop("statuses")
    done = {
        **plan_json(steps.load_plan(outcome.work)),
        "state": "done",
        "chunks": {"done": outcome.done, "reused": outcome.reused, "total": outcome.done},
        "work": outcome.work.uri,
        **finished,
        "rows": rows,
    }
    console.emit(done, as_json, lambda: _show_result(outcome))


def _show_result(outcome: Outcome) -> None:
    from rich.console import Console

    from staticjob.terminal.result import show_result

    show_result(outcome, Console())
