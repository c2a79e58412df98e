"""Rows of CSV files: a header, then rows of text."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyarrow import csv

from staticjob.dataset.streams import open_file
from staticjob.dataset.text import decode_column
from staticjob.errors import DataError
from staticjob.records import InputFile

# Arrow wants each row within two blocks: tried in turn until the longest row fits.
BLOCKS = (4 * 1024 * 1024, 64 * 1024 * 1024, 1024 * 1024 * 1024)
HEADER_ROWS = 2  # Arrow numbers the header 1 and the first row 2, blank lines apart


@dataclass
class Rows:
    """Consecutive rows as text, those in error null, and why by row index in the file."""

    first_row: int
    table: pa.Table
    errors: dict[int, str]


def read_rows(
    file: InputFile, choose: Callable[[Sequence[str]], Sequence[str]], batch_rows: int
) -> Iterator[Rows]:
    """Batches of at most `batch_rows` rows; one without rows where there are none.

    choose: given the header, names the columns to read. A row with too many or too few fields, or
    with bytes that are not UTF-8, is in error. Blank lines are no rows.
    """
    done = 0
    for block, larger in zip(BLOCKS, (*BLOCKS[1:], None), strict=True):
        try:
            for rows in _read(file, choose, batch_rows, block):
                end = rows.first_row + rows.table.num_rows
                if end > done or end == 0:
                    yield _from_row(rows, done)
                    done = end
            return
        except pa.ArrowInvalid as error:
            if "straddling" not in str(error):
                raise
            if larger is None:
                raise DataError(
                    f"{file.object.uri}: a row after row {done} is longer than {block:,} bytes; "
                    "is a quote left open?"
                ) from None


def _from_row(rows: Rows, first_row: int) -> Rows:
    """What is left of the rows from `first_row` on."""
    if rows.first_row >= first_row:
        return rows
    errors = {row: why for row, why in rows.errors.items() if row >= first_row}
    return Rows(first_row, rows.table.slice(first_row - rows.first_row), errors)


class _EndedStream(io.RawIOBase):
    """A stream with one more newline: without any, Arrow does not see a header that is the whole file."""

    def __init__(self, source: pa.NativeFile) -> None:
        super().__init__()
        self._source = source
        self._ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._source.read(size - 1)
        last: bytes = self._source.read(1)
        if not last and not self._ended:
            self._ended = True
            last = b"\n"
        return data + last


@dataclass
class _BadRows:
    """Rows Arrow skipped, by index; it parses ahead, so they are known before their neighbours come."""

    waiting: dict[int, str] = field(default_factory=dict)

    def note(self, row: csv.InvalidRow) -> str:
        index = row.number - HEADER_ROWS
        self.waiting[index] = (
            f"row {index}: {row.actual_columns} fields where {row.expected_columns} are expected"
        )
        return "skip"

    def take(self, first_row: int, good: int) -> dict[int, str]:
        """The bad rows that lie among or right behind `good` rows from `first_row` on."""
        end, taken = first_row + good, {}
        for index in sorted(self.waiting):
            if index > end:
                break
            taken[index] = self.waiting.pop(index)
            end += 1
        return taken


def _read(
    file: InputFile, choose: Callable[[Sequence[str]], Sequence[str]], batch_rows: int, block: int
) -> Iterator[Rows]:
    bad = _BadRows()
    reader = csv.open_csv(
        _EndedStream(open_file(file)),
        # One thread: rows are numbered only then.
        read_options=csv.ReadOptions(use_threads=False, block_size=block),
        parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=bad.note),
        convert_options=csv.ConvertOptions(
            default_column_type=pa.binary(),  # cells that are not UTF-8 must not stop their block
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    names = list(choose(reader.schema.names))
    first_row = 0
    empty = True
    for batch in reader:
        table = pa.Table.from_batches([batch]).select(names)
        for start in range(0, max(1, table.num_rows), batch_rows):
            part = table.slice(start, batch_rows)
            rows = _with_bad_rows(part, first_row, bad.take(first_row, part.num_rows))
            if rows.table.num_rows:
                empty = False
                first_row += rows.table.num_rows
                yield rows
    if bad.waiting or empty:
        yield _with_bad_rows(reader.schema.empty_table().select(names), first_row, bad.take(first_row, 0))


def _with_bad_rows(table: pa.Table, first_row: int, errors: dict[int, str]) -> Rows:
    """The table as text, with a row of nulls for each bad row."""
    if errors:
        bad = np.zeros(table.num_rows + len(errors), bool)
        bad[[index - first_row for index in errors]] = True
        table = table.take(pa.array(np.cumsum(~bad) - 1, mask=bad))
    columns = []
    for name in table.schema.names:
        column, problems = decode_column(table[name])
        columns.append(column)
        for row, why in problems.items():
            errors.setdefault(first_row + row, f"row {first_row + row}: column {name!r} is {why}")
    return Rows(first_row, pa.table(columns, names=table.schema.names), errors)
