"""How far a job is, as lines on a terminal."""

from __future__ import annotations

import click

from staticjob.status import JobStatus
from staticjob.terminal.payloads import status_json


def show_status(status: JobStatus) -> None:
    """Print a snapshot for people."""
    payload = status_json(status)
    chunks, rows = payload["chunks"], payload["computed"]
    click.echo(f"{payload['job']}: {payload['state']}")
    click.echo(f"  output  {payload['output']}")
    click.echo(f"  work    {payload['work']}")
    click.echo(f"  splits  {payload['splits']['done']} of {payload['splits']['total']} tokenized")
    if status.plan:
        kept, running = chunks["reused"], chunks["running"]
        click.echo(f"  chunks  {chunks['done']} of {chunks['total']} done ({kept} kept), {running} running")
        answered = sum(status.plan.answered.values())
        done = rows["done"] + answered
        click.echo(f"  rows    {done} of {status.plan.items} answered, {answered} of them without the model")
        click.echo(
            f"  status  {', '.join(f'{n} {name}' for name, n in payload['statuses'].items()) or 'none'}"
        )
        paid = status.ledger
        click.echo(
            f"  slots   {paid.slots} of {status.plan.ledger.slots} paid, {paid.useful_share:.1%} useful"
        )
    if payload["report"]:
        click.echo(f"  report  {payload['report']}")
    for line in payload["trouble"]:
        click.echo(f"  trouble {line}")
    for error in status.first_errors():
        click.echo(f"  row     {error.file} {error.at}: {error.status}: {error.reason}")
