"""A finished job on a terminal: what became of its rows, what it cost and where the output is."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from staticjob.layout import Output
from staticjob.local_run import Outcome
from staticjob.records.status import Status
from staticjob.terminal.show import values_table
from staticjob.units import duration, money

SHOWN_ERRORS = 5


def show_result(outcome: Outcome, console: Console) -> None:
    """Print rows per status, useful share, time, cost, the first row errors, output and report."""
    manifest = outcome.manifest
    table = values_table("Result")
    table.add_row("rows", f"{manifest.rows:,}")
    for status, rows in manifest.statuses.items():
        table.add_row(f"  {status}", f"{rows:,}")
    kept = f" ({outcome.reused:,} kept from an earlier run)" if outcome.reused else ""
    table.add_row("chunks", f"{outcome.done:,}{kept}")
    if manifest.ledger.slots:
        table.add_row("useful share", f"{manifest.ledger.useful_share:.1%}")
    table.add_row("device time", duration(manifest.seconds))
    if manifest.cost is not None:
        table.add_row("cost", money(manifest.cost))
    console.print(table)
    errors = outcome.first_errors[:SHOWN_ERRORS]
    for error in errors:
        line = f"  {error.file} {error.at}: {error.status}: {error.reason}"
        console.print(Text(line, style="yellow"), soft_wrap=True)
    if manifest.statuses.get(Status.ERROR, 0) > len(errors):
        more = "  more: the output's rows with status error say why in the column reason"
        console.print(Text(more, style="yellow"), soft_wrap=True)
    output = Output(outcome.prepared.config.output.uri)
    # Whole, however narrow the terminal is: people copy them.
    console.print(Text(f"output  {output.uri}\nreport  {output.report_html}"), soft_wrap=True)
