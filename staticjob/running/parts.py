"""Parts: tokenized rows as sorted runs in the store, read back by range.

A part is two objects: `.rows` holds one fixed-width record per row (`ROW_DTYPE`), `.ids` the
rows' token ids one after another, both with the longest row first. Because rows are sorted by
token count, a rung is one contiguous range of both, and where it lies follows from the
part's histogram alone: the plan never reads a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from staticjob import storage
from staticjob.errors import DataError
from staticjob.layout import Work
from staticjob.records.plan import Span
from staticjob.records.tokens import ID_DTYPE, ROW_DTYPE, PartStats

# A run is sorted in memory: 32 Mi tokens are 128 MiB of ids, which are there three times meanwhile.
RUN_TOKENS = 32 * 2**20
RUN_ROWS = 4 * 2**20
# Tokens moved at once while sorting: what finds their places takes 24 bytes for each.
SORT_TOKENS = 2**18
# Tokens fetched by one ranged read while a chunk streams its spans.
READ_TOKENS = 2**20


@dataclass
class PartWriter:
    """Collects tokenized rows of one split and writes a sorted part whenever a run is full."""

    work: Work
    split: str
    parts: list[PartStats] = field(default_factory=list)
    _rows: list[NDArray[np.void]] = field(default_factory=list)
    _ids: list[NDArray[np.int32]] = field(default_factory=list)
    _n_rows: int = 0
    _n_tokens: int = 0

    def add(self, rows: NDArray[np.void], ids: NDArray[np.int32]) -> None:
        """Add rows (`ROW_DTYPE`, [n]) whose ids are `ids` ([sum of lengths]) in the same order."""
        self._rows.append(rows)
        self._ids.append(ids)
        self._n_rows += len(rows)
        self._n_tokens += len(ids)
        if self._n_tokens >= RUN_TOKENS or self._n_rows >= RUN_ROWS:
            self.flush()

    def flush(self) -> None:
        """Sort what was added and write it as the next part; nothing when nothing was added."""
        if not self._n_rows:
            return
        rows, ids = sort_run(np.concatenate(self._rows), np.concatenate(self._ids))
        part = f"{self.split}-p{len(self.parts):03d}"
        storage.put(self.work.part_ids(part), ids.tobytes())
        storage.put(self.work.part_rows(part), rows.tobytes())
        lengths, counts = np.unique(rows["length"], return_counts=True)
        self.parts.append(
            PartStats(
                id=part,
                rows=len(rows),
                tokens=len(ids),
                lengths=tuple(int(n) for n in lengths[::-1]),
                counts=tuple(int(n) for n in counts[::-1]),
            )
        )
        self._rows, self._ids, self._n_rows, self._n_tokens = [], [], 0, 0


def sort_run(rows: NDArray[np.void], ids: NDArray[np.int32]) -> tuple[NDArray[np.void], NDArray[np.int32]]:
    """Sort rows by token count, longest first, and move their ids with them.

    The sort is stable, so equal lengths keep the order of (file, row) in which they were read.
    """
    lengths = rows["length"].astype(np.int64)
    order = np.argsort(-lengths, kind="stable")
    starts = np.cumsum(lengths) - lengths
    stops = np.cumsum(lengths[order])
    moved = np.empty(len(ids), ID_DTYPE)
    begin = done = 0
    while begin < len(rows):
        end = max(begin + 1, int(np.searchsorted(stops, done + SORT_TOKENS, side="right")))
        own, stop = order[begin:end], int(stops[end - 1])
        # Source index of every token: the row's own start plus the position within the row.
        shift = starts[own] - (stops[begin:end] - lengths[own])
        moved[done:stop] = ids[np.repeat(shift, lengths[own]) + np.arange(done, stop)]
        begin, done = end, stop
    return rows[order], moved


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a span: records [n] and their ids laid end to end."""

    rows: NDArray[np.void]
    ids: NDArray[np.int32]


def read_rows(work: Work, span: Span) -> NDArray[np.void]:
    """The row records [n] of a span; DataError where they are not what the plan says."""
    size = ROW_DTYPE.itemsize
    n = span.stop - span.start
    data = storage.read_range(work.part_rows(span.part), span.start * size, n * size)
    rows = np.frombuffer(data[: len(data) // size * size], dtype=ROW_DTYPE)
    if len(rows) != n or int(rows["length"].sum()) != span.token_stop - span.token_start:
        raise DataError(
            f"part {span.part}: rows {span.start} to {span.stop} do not match the plan; "
            f"delete {work.uri} and run the job again"
        )
    return rows


def read_ids(work: Work, part: str, start: int, count: int) -> NDArray[np.int32]:
    """`count` token ids of a part from number `start` on; DataError when the part ends before."""
    width = ID_DTYPE.itemsize
    data = storage.read_range(work.part_ids(part), start * width, count * width)
    if len(data) != count * width:
        raise DataError(
            f"part {part}: its token ids end before the plan says; delete {work.uri} and run the job again"
        )
    return np.frombuffer(data, dtype=ID_DTYPE)


def read_spans(work: Work, spans: tuple[Span, ...], skip_rows: int = 0) -> Iterator[RowBlock]:
    """Stream the rows of spans in order, leaving out the first `skip_rows`.

    Reads rows in blocks of about READ_TOKENS tokens, so memory does not grow with the chunk.
    Raises DataError when a part is shorter than its span says.
    """
    for span in spans:
        n = span.stop - span.start
        if skip_rows >= n:
            skip_rows -= n
            continue
        rows = read_rows(work, span)
        ends = np.cumsum(rows["length"], dtype=np.int64)
        begin = skip_rows
        skip_rows = 0
        while begin < n:
            token_begin = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, token_begin + READ_TOKENS, side="right"))
            end = min(n, max(end, begin + 1))
            token_end = int(ends[end - 1])
            ids = read_ids(work, span.part, span.token_start + token_begin, token_end - token_begin)
            yield RowBlock(rows[begin:end], ids)
            begin = end
