"""Progress of the chunks a process runs: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from staticjob.ledger import Ledger
from staticjob.records import Commit, Plan

log = logging.getLogger(__name__)

LINE_SECONDS = 10.0


class Reporter:
    """Counts slots and rows as batches finish; the ETA follows from the slots still to pay.

    Slots, not rows: the plan runs the longest rows first, so rows per second only rise.
    """

    def __init__(self, plan: Plan, chunks: Iterable[str]) -> None:
        wanted = set(chunks)
        self._total = sum(c.ledger.slots for c in plan.chunks if c.id in wanted)
        self._rows_total = sum(c.rows for c in plan.chunks if c.id in wanted)
        self._slots = self._kept_slots = self._useful = self._rows = 0
        self._started = self._last_line = time.monotonic()
        self._bar = _Bar(self._rows_total) if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.close()

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
        elapsed = max(now - self._started, 1e-9)
        paid = self._slots - self._kept_slots
        tokens_per_second = self._useful / elapsed
        left = (self._total - self._slots) * elapsed / paid if paid else None
        if self._bar:
            self._bar.draw(self._rows, tokens_per_second, left)
        elif now - self._last_line >= LINE_SECONDS and self._total:
            self._last_line = now
            eta = f", {left:.0f} s left" if left is not None else ""
            log.info(
                "%d of %d rows, %.0f%% of slots, %.0f useful tokens/s%s",
                self._rows, self._rows_total, 100 * self._slots / self._total, tokens_per_second, eta,
            )  # fmt: skip


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
            TextColumn("{task.fields[eta]}"),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("rows", total=total_rows, speed="", eta="")
        self._progress.start()

    def draw(self, rows: int, tokens_per_second: float, left: float | None) -> None:
        eta = f"{left:.0f} s left" if left is not None else ""
        self._progress.update(
            self._task, completed=rows, speed=f"{tokens_per_second:,.0f} useful tokens/s", eta=eta
        )

    def close(self) -> None:
        self._progress.stop()
