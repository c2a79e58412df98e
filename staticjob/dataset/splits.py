"""Input files packed and cut into splits of about equal bytes, each the work of one tokenize task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow.parquet as pq

from staticjob.dataset.parquet import open_parquet
from staticjob.dataset.streams import reading
from staticjob.records.prepared import FileSlice, InputFile, Split

TARGET_BYTES = 64 * 1024 * 1024
FILE_BYTES = 256 * 1024  # what opening a file costs, in bytes read meanwhile
FOOTERS_AT_ONCE = 16


@dataclass(frozen=True)
class Piece:
    """The smallest thing that goes into one split: a file, or one row group of a large Parquet file."""

    file: int
    bytes: int
    group: int | None = None
    first_row: int = 0


def plan_splits(
    files: Sequence[InputFile], *, max_splits: int, target_bytes: int = TARGET_BYTES
) -> tuple[Split, ...]:
    """Splits in file order, at most `max_splits`, covering every row group of every file once.

    Reads the footers of Parquet files larger than a split and of no others.
    """
    whole = sum(file.object.size + FILE_BYTES for file in files)
    target = max(target_bytes, math.ceil(whole / max_splits))
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as threads:
        pieces = [piece for cut in threads.map(lambda file: _cut(file, target), files) for piece in cut]
    number = min(max_splits, math.ceil(whole / target))
    return tuple(
        Split(id=f"s{index:05d}", slices=tuple(_slices(members)))
        for index, members in enumerate(pack(pieces, number))
    )


def pack(pieces: Sequence[Piece], number: int) -> list[list[Piece]]:
    """At most `number` runs of consecutive pieces: a piece goes where its middle byte falls."""
    total = sum(piece.bytes for piece in pieces)
    runs: list[list[Piece]] = [[] for _ in range(number)]
    start = 0
    for piece in pieces:
        middle = start + piece.bytes / 2
        runs[min(number - 1, int(middle / total * number))].append(piece)
        start += piece.bytes
    return [run for run in runs if run]


def _cut(file: InputFile, target: int) -> list[Piece]:
    if file.format != "parquet" or file.object.size <= target:
        return [Piece(file.index, file.object.size + FILE_BYTES)]
    with reading(file), open_parquet(file) as parquet:
        footer = parquet.metadata
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        sizes = [_stored_bytes(group) for group in groups]
        rows = [group.num_rows for group in groups]
    if len(groups) < 2:
        return [Piece(file.index, file.object.size + FILE_BYTES)]
    return [Piece(file.index, size, i, sum(rows[:i])) for i, size in enumerate(sizes)]


def _stored_bytes(group: pq.RowGroupMetaData) -> int:
    return sum(group.column(i).total_compressed_size for i in range(group.num_columns))


def _slices(pieces: Sequence[Piece]) -> Iterator[FileSlice]:
    """One slice per file; the row groups of a file in one split are consecutive."""
    by_file: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_file.setdefault(piece.file, []).append(piece)
    for file, members in by_file.items():
        first, last = members[0], members[-1]
        if first.group is None or last.group is None:
            yield FileSlice(file=file)
        else:
            yield FileSlice(file=file, row_groups=(first.group, last.group + 1), first_row=first.first_row)
