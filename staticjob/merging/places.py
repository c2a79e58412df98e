"""Which place in a spool belongs to which row: file after file, in the order of the input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from staticjob.errors import DataError
from staticjob.records.plan import MergeGroup, Plan


@dataclass(frozen=True)
class Places:
    """Where results lie in a spool: file after file, in the order of the input.

    Rows that are lists have a place for every element, and one for none. `rows` counts the rows before each
    file, and in all; `counts` are the elements of every row, `items` says where each row's begin.
    """

    files: tuple[int, ...]  # ascending
    starts: tuple[int, ...]  # position of each file's first row, and of the end
    rows: tuple[int, ...]
    counts: NDArray[np.int32] | None = None
    items: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, group: MergeGroup, plan: Plan, counts: NDArray[np.int32] | None = None) -> Places:
        """`counts`: where rows are lists, the elements of every row of the group."""
        files = tuple(sorted(group.files))
        rows = np.cumsum([0, *(plan.file_rows[f] for f in files)], dtype=np.int64)
        if counts is None:
            return cls(files, tuple(rows.tolist()), tuple(rows.tolist()))
        items = np.concatenate([[0], np.cumsum(np.maximum(counts, 1), dtype=np.int64)])
        return cls(files, tuple(items[rows].tolist()), tuple(rows.tolist()), counts, items)

    @property
    def size(self) -> int:
        return self.starts[-1]

    def positions(
        self, file: NDArray[np.int32], row: NDArray[np.int64], item: NDArray[np.int32]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which results [n] are of this group, and the positions [m] of those.

        Raises DataError for a row its file, or an element its row, does not have.
        """
        files = np.array(self.files, dtype=np.int64)
        rows = np.array(self.rows, dtype=np.int64)
        index = np.minimum(np.searchsorted(files, file), len(files) - 1)
        inside = files[index] == file
        index, row, item = index[inside], row[inside], item[inside]
        beyond = (row < 0) | (row >= rows[index + 1] - rows[index]) | (item < 0)
        place = np.where(beyond, 0, rows[index] + row)
        if self.items is None:
            beyond |= item > 0
        else:
            beyond |= item >= np.diff(self.items)[place]
            place = self.items[place] + item
        if beyond.any():
            at = int(np.flatnonzero(beyond)[0])
            raise DataError(
                f"a result names row {row[at]}, element {item[at]}, of input file {files[index[at]]}, which "
                "the plan does not have; delete the work prefix and run the job again"
            )
        return inside, place

    def name(self, position: int) -> tuple[int, int]:
        """(file, row) at a position."""
        if self.items is not None:
            position = int(np.searchsorted(self.items, position, side="right")) - 1
        index = int(np.searchsorted(self.rows, position, side="right")) - 1
        return self.files[index], position - self.rows[index]
