"""What the demo shows: a live bar from the job's own progress objects, and the result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from staticjob.running.speed import speed
from staticjob.status import JobStatus
from staticjob.units import money

LINE_SECONDS = 10.0
CELL_CHARACTERS = 40


class LiveProgress:
    """A bar of rows with tokens/s and ETA; plain lines every few seconds where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.fields[steps]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows"),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("", total=None, steps="", speed="")
        self._speed = SinceFirst()
        self._started, self._last_line = time.monotonic(), 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def draw(self, steps: str, status: JobStatus | None) -> None:
        """Show the running steps and, once the job is planned, how far its rows are."""
        plan = status.plan if status else None
        done = total = None
        text = ""
        if status and plan:
            done, total = status.rows_done, sum(chunk.rows for chunk in plan.chunks)
            text = self._speed.text(status.ledger.useful, status.ledger.slots, plan.ledger.slots)
        if self._console.is_terminal:
            self._progress.update(self._task, steps=steps, completed=done or 0, total=total, speed=text)
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            rows = f"{done} of {total} rows {text}" if total is not None else ""
            line = f"{time.monotonic() - self._started:4.0f} s  {steps}  {rows}"
            self._console.print(line.rstrip(), highlight=False, soft_wrap=True)


class SinceFirst:
    """Speed since the first reading: what was paid before, an earlier run may have paid."""

    def __init__(self) -> None:
        self._first: tuple[float, int, int] | None = None

    def text(self, useful: int, slots: int, planned: int) -> str:
        """The speed in words; empty before there are two readings, or when nothing is left."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, useful, slots)
        start, useful_before, slots_before = self._first
        measured = speed(now - start, useful - useful_before, slots - slots_before, planned - slots)
        return measured.text if measured and slots < planned else ""


def result_table(result: dict[str, Any], status: JobStatus, report: Path, seconds: float) -> Table:
    """The result of a finished run. result: what `finish` printed; seconds: trigger to end."""
    table = Table(title=f"job {status.prepared.config.name}", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    total = len(status.commits)
    computed = total - status.reused
    if not computed:
        work = f"resumed: all {total} chunks kept from an earlier run, nothing was computed again"
    else:
        work = f"{computed} of {total} chunks computed, {status.reused} kept from an earlier run"
    whose = "" if not status.reused else ", a part of it by earlier runs" if computed else ", by earlier runs"
    statuses = ", ".join(f"{count} {name}" for name, count in result["statuses"].items())
    cost = "no price in the job file" if result["cost"] is None else money(result["cost"])
    for name, value in (
        ("rows", f"{result['rows']} ({statuses})"),
        ("chunks", work),
        ("useful", f"{result['useful_share']:.1%} of {result['ledger']['slots']:,} slots"),
        ("compute", f"{result['seconds']:.1f} s, {cost}{whose}"),
        ("wall clock", f"{seconds:.0f} s from trigger to end"),
        ("output", result["output"]),
        ("report", str(report)),
    ):
        table.add_row(name, value)
    return table


def rows_table(rows: Sequence[Mapping[str, object]], source: str) -> Table:
    """Rows of an output file as they are, long values cut."""
    table = Table(title=f"first rows of {source}")
    for name in rows[0] if rows else ():
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    return table


def _cell(value: object) -> str:
    if isinstance(value, list) and len(value) > 3:
        return f"[{', '.join(f'{item:.3g}' for item in value[:3])}, … {len(value)}]"
    text = "" if value is None else str(value)
    return text if len(text) <= CELL_CHARACTERS else f"{text[: CELL_CHARACTERS - 1]}…"
