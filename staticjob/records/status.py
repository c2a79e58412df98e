"""What became of a row, in a word, and in one line for people."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from staticjob.records.record import Record


class Status(StrEnum):
    """The outcome of one row: a result (WITH_RESULT), or the reason why there is none."""

    OK = "ok"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    NULL = "null"
    TOO_LONG = "too_long"
    ERROR = "error"


WITH_RESULT = (Status.OK, Status.TRUNCATED)
# Row errors that a record names.
FIRST_ERRORS = 10


class RowError(Record):
    """One row that could not be answered with a result, for people to read."""

    file: str
    row: int = Field(description="row index in the file, from 0")
    line: int | None = Field(default=None, description="line in the file, from 1, where it has lines")
    status: Status
    reason: str

    @property
    def at(self) -> str:
        """The one number that finds the row: `line 9` of a text file, `row 3` of a table."""
        return f"row {self.row}" if self.line is None else f"line {self.line}"
