"""What `tokenize` leaves: how a part's binary objects are laid out, and what a split holds."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from staticjob.records.record import Record
from staticjob.records.status import RowError, Status

# One row of a part's `.rows` object; rows of a part are sorted by token count, longest first.
# `boundary` is the index of the first token of a second segment (a pair's second text, a
# continuation), or -1 where there is none; `item` numbers the elements of a row that is a list, each of
# which is run on its own, and is 0 for other rows.
ROW_DTYPE = np.dtype(
    [
        ("row", "<i8"),
        ("file", "<i4"),
        ("item", "<i4"),
        ("length", "<i4"),
        ("boundary", "<i4"),
        ("truncated", "<i4"),
    ]
)
# Elements per row of a split's `.items` object, in the order read: NO_LIST where the row is no list.
ITEMS_DTYPE = np.dtype("<i4")
NO_LIST = -1
# Token ids in a part's `.ids` object: the rows' ids one after another, in the order of `.rows`.
ID_DTYPE = np.dtype("<i4")


class PartStats(Record):
    """A sorted run of tokenized rows: how many rows it holds of each token count."""

    id: str
    rows: int
    tokens: int
    lengths: tuple[int, ...] = Field(description="distinct token counts, descending")
    counts: tuple[int, ...] = Field(description="rows per entry of lengths")


class SliceStats(Record):
    """What tokenize saw of one file slice."""

    file: int
    first_row: int
    rows: int
    items: int = Field(description="rows, where a row is a list its elements (at least one)")
    kept_schema: str = Field(description="base64 of the Arrow IPC schema of the kept columns")


class SplitStats(Record):
    """`tokens/<split>.json`, written last: the split is tokenized when it exists."""

    split: str
    parts: tuple[PartStats, ...]
    slices: tuple[SliceStats, ...]
    statuses: dict[Status, int] = Field(description="items per status")
    arrival_slots: int = Field(
        description="slots of the runnable rows in arrival order, 32 at a time, padded to the longest"
    )
    first_errors: tuple[RowError, ...] = ()
    seconds: float
