"""How far a job is, as lines on a terminal."""

from __future__ import annotations

import click

from staticjob.status import JobStatus


def show_status(status: JobStatus) -> None:
    """Print a snapshot for people."""
    payload = status.payload()
    chunks, rows = payload["chunks"], payload["computed"]
    click.echo(f"{payload['job']}: {payload['state']}")
    click.echo(f"  output  {payload['output']}")
    click.echo(f"  work    {payload['work']}")
    click.echo(f"  splits  {payload['splits']['done']} of {payload['splits']['total']} tokenized")
    if status.plan:
        kept, running = chunks["reused"], chunks["running"]
        click.echo(f"  chunks  {chunks['done']} of {chunks['total']} done ({kept} kept), {running} running")
        click.echo(f"  rows    {rows['done']} of {rows['total']} computed")
        paid = status.ledger
        click.echo(
            f"  slots   {paid.slots} of {status.plan.ledger.slots} paid, {paid.useful_share:.1%} useful"
        )
    for line in payload["trouble"]:
        click.echo(f"  trouble {line}")
    for error in status.first_errors():
        click.echo(f"  row     {error.file} {error.at}: {error.status}: {error.reason}")
