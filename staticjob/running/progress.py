"""Progress of the chunks a process runs: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from staticjob.ledger import Ledger
from staticjob.records.commit import Commit
from staticjob.records.plan import Plan
from staticjob.running.speed import speed

log = logging.getLogger(__name__)

LINE_SECONDS = 10.0


class Reporter:
    """Counts slots and rows as batches finish, and shows how fast that goes.

    Where rows grow nobody knows the slots beforehand: after `by_rows` what is left is told in rows.
    """

    def __init__(self, plan: Plan, chunks: Iterable[str]) -> None:
        wanted = set(chunks)
        self._total = sum(c.ledger.slots for c in plan.chunks if c.id in wanted)
        self._rows_total = sum(c.rows for c in plan.chunks if c.id in wanted)
        self._slots = self._kept_slots = self._useful = self._rows = 0
        self._unit = "slots"
        self._started = self._last_line = time.monotonic()
        self._bar = _Bar(self._rows_total) if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.close()

    def by_rows(self, samples: int) -> None:
        """Measure what is left in rows instead of slots, each row `samples` times."""
        self._rows_total *= samples
        self._rows *= samples
        self._total, self._unit = self._rows_total, "rows"
        # What was found done before this was counted in slots.
        self._slots = self._kept_slots = self._rows

    def texts(self, rows: int, tokens: int, kept: bool = False) -> None:
        """Rows answered with `tokens` in all, or found answered."""
        self._slots += rows
        self._rows += rows
        if kept:
            self._kept_slots += rows
        else:
            self._useful += tokens
        self._draw()

    def kept(self, ledger: Ledger, rows: int) -> None:
        """Work found done: it counts as progress, not as speed."""
        self._kept_slots += ledger.slots
        self._slots += ledger.slots
        self._rows += rows
        self._draw()

    def batch(self, ledger: Ledger, rows: int) -> None:
        """One batch computed."""
        self._slots += ledger.slots
        self._useful += ledger.useful
        self._rows += rows
        self._draw()

    def committed(self, commit: Commit) -> None:
        """One chunk committed by this process."""
        log.info(
            "chunk %s committed: %d rows, %d batches (%d kept), %.1f%% useful, %.1f s",
            commit.chunk,
            commit.rows,
            commit.batches,
            commit.kept_batches,
            100 * commit.ledger.useful_share,
            commit.seconds,
        )

    def _draw(self) -> None:
        now = time.monotonic()
        paid = self._slots - self._kept_slots
        measured = speed(now - self._started, self._useful, paid, self._total - self._slots)
        if self._bar:
            self._bar.draw(self._rows, measured.text if measured else "")
        elif now - self._last_line >= LINE_SECONDS and self._total:
            self._last_line = now
            share = 100 * self._slots / self._total
            tail = f", {measured.text}" if measured else ""
            log.info("%d of %d rows, %.0f%% of %s%s", self._rows, self._rows_total, share, self._unit, tail)


class _Bar:
    """The rich bar, imported only where there is a terminal to draw it on."""

    def __init__(self, total_rows: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("rows"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("rows", total=total_rows, speed="")
        self._progress.start()

    def draw(self, rows: int, speed: str) -> None:
        self._progress.update(self._task, completed=rows, speed=speed)

    def close(self) -> None:
        self._progress.stop()
