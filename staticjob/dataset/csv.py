"""Rows of CSV files: a header, then rows of text."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyarrow import csv

from staticjob.dataset.csv_lines import RowLines
from staticjob.dataset.streams import open_file
from staticjob.dataset.text import decode_column
from staticjob.errors import DataError
from staticjob.records.prepared import InputFile

# Arrow wants each row within two blocks: tried in turn until the longest row fits.
BLOCKS = (4 * 1024 * 1024, 64 * 1024 * 1024, 1024 * 1024 * 1024)
BOM = b"\xef\xbb\xbf"
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
    with bytes that are not UTF-8, is in error. Blank lines are no rows. Raises DataError for a quote
    that nothing closes: what follows it would be one row.
    """
    done = block = 0
    escaped = False
    while True:
        try:
            for rows in _read(file, choose, batch_rows, BLOCKS[block], escaped):
                end = rows.first_row + rows.table.num_rows
                if end > done or end == 0:
                    yield _from_row(rows, done)
                    done = end
            return
        except pa.ArrowInvalid as error:
            if "straddling" in str(error):
                block += 1
                if block == len(BLOCKS):
                    raise DataError(
                        f"{file.object.uri}: a row behind the first {done:,} is longer than "
                        f"{BLOCKS[-1]:,} bytes; is a quote left open?"
                    ) from None
            elif "CSV parse error" in str(error) and not escaped:
                escaped = True  # Arrow could not show us a bad row: its bytes are not UTF-8
            else:
                raise


def _from_row(rows: Rows, first_row: int) -> Rows:
    """What is left of the rows from `first_row` on."""
    if rows.first_row >= first_row:
        return rows
    errors = {row: why for row, why in rows.errors.items() if row >= first_row}
    return Rows(first_row, rows.table.slice(first_row - rows.first_row), errors)


class _Stream(io.RawIOBase):
    """A file's bytes with one more newline: without any, Arrow does not see a header that is the whole file.

    escaped: each byte as the character of that number, so that any row is UTF-8; `_unescape` undoes it.
    """

    def __init__(self, source: pa.NativeFile, escaped: bool) -> None:
        super().__init__()
        self._source = source
        self._escaped = escaped
        self._begun = self._ended = False
        self.last = b""  # the last byte so far that ends no line

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._source.read(size // 2 - 1 if self._escaped else size - 1)
        last: bytes = self._source.read(1)
        if self._escaped and not self._begun:
            data = data.removeprefix(BOM)
        self._begun = True
        self.last = (data + last).rstrip(b"\r\n")[-1:] or self.last
        if not last and not self._ended:
            self._ended = True
            last = b"\n"
        data += last
        return data.decode("latin-1").encode() if self._escaped else data


def _unescape(cell: bytes | None) -> bytes | None:
    return None if cell is None else cell.decode().encode("latin-1")


@dataclass
class _BadRows:
    """Rows Arrow skipped, by index; it parses ahead, so they are known before their neighbours come."""

    waiting: dict[int, str] = field(default_factory=dict)
    unclosed: int | None = None  # the row that runs to the end of the file, newline included

    def note(self, row: csv.InvalidRow) -> str:
        index = row.number - HEADER_ROWS
        if row.text.endswith("\n"):
            self.unclosed = index
        self.waiting[index] = f"{row.actual_columns} fields where {row.expected_columns} are expected"
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
    file: InputFile,
    choose: Callable[[Sequence[str]], Sequence[str]],
    batch_rows: int,
    block: int,
    escaped: bool,
) -> Iterator[Rows]:
    bad = _BadRows()
    stream = _Stream(open_file(file), escaped)
    reader = csv.open_csv(
        stream,
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
    header = reader.schema.names
    if escaped:
        header = [name.encode("latin-1").decode() for name in header]
    names = list(choose(header))
    first_row = 0
    empty = True
    end = b""
    for batch in reader:
        if batch.num_rows:
            end = batch.columns[-1][-1].as_py() or b""
        table = pa.table(batch.columns, names=header).select(names)
        if escaped:
            cells = [[_unescape(cell) for cell in column.to_pylist()] for column in table.columns]
            table = pa.table([pa.array(column, pa.binary()) for column in cells], names=names)
        for start in range(0, max(1, table.num_rows), batch_rows):
            part = table.slice(start, batch_rows)
            rows = _with_bad_rows(part, first_row, bad.take(first_row, part.num_rows))
            if rows.table.num_rows:
                empty = False
                first_row += rows.table.num_rows
                yield rows
    # A cell with a newline at its end was quoted: the quote that closes it is the file's last byte.
    if end.endswith(b"\n") and stream.last != b'"':
        bad.unclosed = first_row - 1
    if bad.unclosed is not None:
        line = RowLines(file).line_of(bad.unclosed)
        raise DataError(
            f"{file.object.uri}: line {line}: a quote is left open to the end of the file; "
            "close it, or write the file again"
        )
    if bad.waiting or empty:
        table = pa.table([pa.array([], pa.binary())] * len(names), names=names)
        yield _with_bad_rows(table, first_row, bad.take(first_row, 0))


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
            errors.setdefault(first_row + row, f"column {name!r} is {why}")
    return Rows(first_row, pa.table(columns, names=table.schema.names), errors)
