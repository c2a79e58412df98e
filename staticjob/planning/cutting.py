"""From rungs to chunks: which rows of which parts each chunk runs.

All rows are thought of in one order: token count descending, ties by part and then by place in
the part. A rung takes a contiguous range of that order, so it takes a contiguous range of every
part, and the rows a rung promotes (its longest) are simply the last of the next longer rung.
Within a rung the parts' ranges are laid end to end and cut into chunks of whole batches, which
makes about (chunks + parts x rungs) spans however many rows there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from staticjob.ladder import Fill
from staticjob.ledger import Ledger
from staticjob.records.plan import Chunk, Span
from staticjob.records.tokens import PartStats

Ints = npt.NDArray[np.int64]


class SortedPart:
    """A part as run lengths: counts rows and tokens of any range of it from its histogram alone."""

    def __init__(self, stats: PartStats) -> None:
        self.id = stats.id
        self.rows = stats.rows
        self.lengths = np.asarray(stats.lengths, np.int64)
        counts = np.asarray(stats.counts, np.int64)
        self.row_starts = np.concatenate([[0], np.cumsum(counts)])
        self.token_starts = np.concatenate([[0], np.cumsum(counts * self.lengths)])

    def rows_longer(self, lengths: Ints) -> Ints:
        """Rows longer than each of `lengths`."""
        return self.row_starts[np.searchsorted(-self.lengths, -lengths, side="left")]

    def rows_at_least(self, lengths: Ints) -> Ints:
        """Rows at least as long as each of `lengths`."""
        return self.row_starts[np.searchsorted(-self.lengths, -lengths, side="right")]

    def tokens_before(self, row: int) -> int:
        """Tokens of the part's first `row` rows."""
        if row == self.rows:
            return int(self.token_starts[-1])
        run = int(np.searchsorted(self.row_starts, row, side="right")) - 1
        return int(self.token_starts[run] + (row - self.row_starts[run]) * self.lengths[run])


def rung_ranges(parts: Sequence[SortedPart], rows_per_rung: Sequence[int]) -> Ints:
    """Where each rung begins and ends in every part: [parts, rungs + 1] row numbers.

    `rows_per_rung` goes from the longest rung to the shortest and sums to all rows. Rung r takes
    rows `ranges[p, r]` to `ranges[p, r + 1]` of part p.
    """
    ranks = np.concatenate([[0], np.cumsum(rows_per_rung, dtype=np.int64)])
    lengths, starts = _all_runs(parts)
    run = np.minimum(np.searchsorted(starts, ranks, side="right") - 1, len(lengths) - 1)
    cut_lengths = lengths[run]
    longer = np.array([part.rows_longer(cut_lengths) for part in parts])
    equal = np.array([part.rows_at_least(cut_lengths) for part in parts]) - longer
    # Rows as long as the cut are taken from the parts in order until the rank is reached.
    wanted = ranks - longer.sum(axis=0)
    taken = np.clip(wanted - (np.cumsum(equal, axis=0) - equal), 0, equal)
    result: Ints = longer + taken
    return result


def _all_runs(parts: Sequence[SortedPart]) -> tuple[Ints, Ints]:
    """Distinct lengths over all parts, descending, and the rank at which each begins."""
    lengths = np.concatenate([part.lengths for part in parts])
    counts = np.concatenate([np.diff(part.row_starts) for part in parts])
    distinct, where = np.unique(-lengths, return_inverse=True)
    sums = np.bincount(where, weights=counts).astype(np.int64)
    return -distinct, np.cumsum(sums) - sums


def cut_chunks(
    parts: Sequence[PartStats], fills: Sequence[Fill], chunk_slots: int, max_rows: int, growth: int = 0
) -> tuple[Chunk, ...]:
    """All chunks, longest rung first; each about `chunk_slots` slots and at most `max_rows` rows.

    `fills` goes from the longest rung to the shortest and holds every row of `parts`; rows that grow
    count with `growth` slots more.
    """
    indexed = [SortedPart(part) for part in parts if part.rows]
    if not indexed:
        return ()
    ranges = rung_ranges(indexed, [fill.rows for fill in fills])
    chunks: list[Chunk] = []
    for rung, fill in enumerate(fills):
        spans = _Cursor(indexed, ranges[:, rung], ranges[:, rung + 1])
        for batches in _even(fill.batches, _batches_per_chunk(fill, chunk_slots, max_rows, growth)):
            chunks.append(_chunk(fill, batches, tuple(spans.take(batches * fill.batch))))
    return tuple(chunks)


class _Cursor:
    """Walks one rung's ranges of the parts, end to end."""

    def __init__(self, parts: Sequence[SortedPart], starts: Ints, stops: Ints) -> None:
        self.left = [
            (part, int(start), int(stop))
            for part, start, stop in zip(parts, starts, stops, strict=True)
            if stop > start
        ][::-1]

    def take(self, rows: int) -> Iterator[Span]:
        """Spans of the next `rows` rows, or of as many as are left."""
        while rows and self.left:
            part, start, stop = self.left.pop()
            end = min(stop, start + rows)
            if end < stop:
                self.left.append((part, end, stop))
            rows -= end - start
            yield Span(
                part=part.id,
                start=start,
                stop=end,
                token_start=part.tokens_before(start),
                token_stop=part.tokens_before(end),
            )


def _batches_per_chunk(fill: Fill, chunk_slots: int, max_rows: int, growth: int) -> int:
    slots = fill.batch * (fill.length + growth)
    return max(1, min(chunk_slots // slots, max_rows // fill.batch))


def _even(batches: int, most: int) -> list[int]:
    """Sizes of the fewest chunks of at most `most` batches, differing by at most one, larger first."""
    chunks = -(-batches // most)
    small, larger = divmod(batches, chunks)
    return [small + 1] * larger + [small] * (chunks - larger)


def _chunk(fill: Fill, batches: int, spans: tuple[Span, ...]) -> Chunk:
    rows = sum(span.stop - span.start for span in spans)
    useful = sum(span.token_stop - span.token_start for span in spans)
    slots = batches * fill.batch * fill.length
    dummy = (batches * fill.batch - rows) * fill.length
    identity = repr((fill.length, fill.batch, [(s.part, s.start, s.stop) for s in spans]))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:10]
    return Chunk(
        id=f"L{fill.length:04d}-B{fill.batch:04d}-{digest}",
        length=fill.length,
        batch=fill.batch,
        batches=batches,
        rows=rows,
        spans=spans,
        ledger=Ledger(useful=useful, padding=slots - dummy - useful, dummy=dummy, slots=slots),
    )
