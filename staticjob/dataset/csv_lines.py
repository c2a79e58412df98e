"""On which line of a CSV file a row begins: the number a person finds it by in an editor."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator

from staticjob.dataset.streams import open_file
from staticjob.records.prepared import InputFile


class RowLines:
    """Lines of a file's rows, asked for in ascending order.

    Reads the file once more, up to the row asked for: only rows in error are worth it.
    """

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._lines: Iterator[int] | None = None
        self._row = -1
        self._line: int | None = None

    def line_of(self, row: int) -> int | None:
        """The line, from 1 and the header's counted, on which `row` (from 0) begins; None past the end."""
        if self._lines is None:
            self._lines = _first_lines(self._file)
        while self._row < row:
            self._row += 1
            self._line = next(self._lines, None)
        return self._line


def _first_lines(file: InputFile) -> Iterator[int]:
    """The first line of every row behind the header; blank lines are no rows."""
    csv.field_size_limit(sys.maxsize)
    stream = io.BufferedReader(open_file(file))
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text)
    begin, header = 1, True
    for fields in reader:
        if fields and not header:
            yield begin
        header = header and not fields
        begin = reader.line_num + 1
