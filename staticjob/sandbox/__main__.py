"""`python -m staticjob.sandbox up|down|demo`: what the Makefile calls."""

from __future__ import annotations

from pathlib import Path

import click

from staticjob.sandbox.airflow import REPOSITORY, USER
from staticjob.terminal import console

run_dir_option = click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    default=REPOSITORY / ".run",
    show_default=".run",
    help="Everything lies beneath this folder.",
)
rows_option = click.option(
    "--rows",
    type=click.IntRange(min=0),
    envvar="ROWS",
    help="Rows of the demo's data set; each demo has its own default.",
)
port_option = click.option(
    "--port", type=int, default=0, envvar="PORT", help="Port of Airflow's UI; 0 takes a free one."
)


@click.group()
def main() -> None:
    """A local S3 store and a real Airflow, on the loopback only."""


@main.command()
@run_dir_option
@rows_option
@port_option
def up(run_dir: Path, rows: int | None, port: int) -> None:
    """Start store and Airflow, upload the demo data set, and stay up."""
    from staticjob.sandbox.demos import DATE, DOCSTRINGS
    from staticjob.sandbox.stack import STARTING, Sandbox

    sandbox = Sandbox(run_dir, jobs=REPOSITORY / "jobs", port=port)
    airflow = sandbox.airflow
    if airflow.running():
        click.echo("running already")
    else:
        click.echo(STARTING)
        sandbox.up()
        what = DOCSTRINGS.upload(DOCSTRINGS.input, DOCSTRINGS.rows if rows is None else rows)
        click.echo(f"Data     {what} in {DOCSTRINGS.input}: trigger the DAG docstrings with date {DATE}")
    click.echo(f"Airflow  {airflow.url}  user {USER}  password {airflow.password}")
    click.echo(f"S3       source {sandbox.run_dir / 'env.sh'}")
    click.echo("Stop it all with: make down")


@main.command()
@run_dir_option
def down(run_dir: Path) -> None:
    """Stop everything that `up` or `demo` started beneath the folder."""
    from staticjob.sandbox.stack import Sandbox

    ended = Sandbox(run_dir, jobs=REPOSITORY / "jobs").down()
    click.echo(f"{ended} processes ended" if ended else "nothing was running")


@main.command()
@run_dir_option
@rows_option
@port_option
@click.option("--job", default="docstrings", show_default=True, help="A job file of jobs/ that has a demo.")
def demo(run_dir: Path, rows: int | None, port: int, job: str) -> None:
    """Run a demo job end to end under Airflow, show its result, and stop everything."""
    from staticjob.sandbox.demo import run_demo
    from staticjob.sandbox.demos import DEMOS

    if job not in DEMOS:
        raise click.BadParameter(f"{job!r} has no demo; {', '.join(DEMOS)} have", param_hint="--job")
    run_demo(DEMOS[job], run_dir, rows, port)


if __name__ == "__main__":
    try:
        main(prog_name="python -m staticjob.sandbox", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except click.Abort:  # what click makes of Ctrl-C
        console.fail(KeyboardInterrupt(), as_json=False)
    except Exception as error:  # the one place where failures end
        console.fail(error, as_json=False)
