"""A local spool: results of a merge group's rows by row position, on disk, at flat memory.

Results arrive in the order of token counts and leave in the order of the input. Each row has
one fixed-width record in a memory-mapped temporary file, so that bringing it into place
touches one page; pages are given back as soon as they are written or read. Text and lists of any
length lie end to end in a `Heap`, and the record holds their number there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from staticjob.merging.cells import from_bytes, is_variable, to_bytes
from staticjob.merging.scratch import Heap, Mapped
from staticjob.records.status import WITH_RESULT, Status
from staticjob.running.results import vectors

# Records are brought into place in sorted lots: many rows per touched page where records are small.
LOT_BYTES = 32 * 2**20
# Rows between two returns of touched pages: at a page a row, 16 MiB.
PAGE_ROWS = 4096
# Rows whose count is looked at at once, and how many faulty rows are named.
COUNT_ROWS = 2**20
NAMED = 5
STATUSES = tuple(s.value for s in Status)


@dataclass(frozen=True)
class Coverage:
    """Rows that were not seen exactly once: how many, and the first positions of each kind."""

    missing: int
    doubled: int
    first_missing: tuple[int, ...]
    first_doubled: tuple[int, ...]


class Spool:
    """Result columns of `rows` rows, written in any order and read back by position.

    heads: the task's own columns; fixed-size lists and numbers lie in the record, strings and lists
        of any length in a heap. They are null for rows whose status carries no result.
    """

    def __init__(self, rows: int, heads: Sequence[pa.Field], folder: Path) -> None:
        self.rows = rows
        self._heads = tuple(heads)
        self._dtype = _record_dtype(self._heads)
        self._file = Mapped(folder, rows * self._dtype.itemsize)
        self._records = self._file.array(self._dtype, rows)
        self._seen_file = Mapped(folder, rows)
        self._seen = self._seen_file.array(np.dtype(np.uint8), rows)
        variable = ["reason", *(f.name for f in heads if is_variable(f.type))]
        self._heaps = {name: Heap(folder) for name in variable}
        self._engines: list[str] = []
        self._lot: list[tuple[NDArray[np.int64], NDArray[np.void]]] = []
        self._lot_bytes = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one record."""
        return self._dtype.itemsize

    def put(self, positions: NDArray[np.int64], batch: pa.RecordBatch) -> None:
        """Add one result per position [n]; columns the batch lacks (answered rows) stay empty."""
        records = np.zeros(len(positions), dtype=self._dtype)
        names = set(batch.schema.names)
        records["status"] = pc.index_in(batch["status"], pa.array(STATUSES)).to_numpy()
        records["n_tokens"] = batch["n_tokens"].to_numpy()
        records["reason"] = self._heaps["reason"].add(to_bytes(batch["reason"]))
        if "rung" in names:
            records["rung"] = batch["rung"].fill_null(0).to_numpy()
            records["engine"] = self._engine_codes(batch["engine"])
        for field in self._heads:
            if field.name in names:
                records[field.name] = self._head_values(field, batch[field.name])
        self._lot.append((positions, records))
        self._lot_bytes += records.nbytes
        if self._lot_bytes >= LOT_BYTES:
            self._place()

    def seal(self) -> Coverage:
        """End adding; returns which rows were not seen exactly once."""
        self._place()
        for heap in self._heaps.values():
            heap.seal()
        missing = doubled = 0
        first_missing: list[int] = []
        first_doubled: list[int] = []
        for begin in range(0, self.rows, COUNT_ROWS):
            seen = self._seen[begin : begin + COUNT_ROWS]
            none, many = np.flatnonzero(seen == 0), np.flatnonzero(seen > 1)
            missing += len(none)
            doubled += len(many)
            first_missing += [begin + int(p) for p in none[: NAMED - len(first_missing)]]
            first_doubled += [begin + int(p) for p in many[: NAMED - len(first_doubled)]]
            self._seen_file.give_back(begin, begin + len(seen))
        return Coverage(missing, doubled, tuple(first_missing), tuple(first_doubled))

    def read(self, start: int, stop: int) -> dict[str, pa.Array]:
        """Columns of rows start..stop: the heads, then status, reason, n_tokens, engine, rung."""
        records = self._records[start:stop].copy()
        size = self._dtype.itemsize
        self._file.give_back(start * size, stop * size)
        with_result = np.isin(records["status"], [STATUSES.index(s.value) for s in WITH_RESULT])
        columns = {f.name: self._head_array(f, records[f.name], ~with_result) for f in self._heads}
        columns["status"] = _decode(records["status"], STATUSES)
        columns["reason"] = from_bytes(self._heaps["reason"].take(records["reason"]), pa.string())
        columns["n_tokens"] = pa.array(records["n_tokens"])
        columns["engine"] = _decode(records["engine"], (None, *self._engines))
        columns["rung"] = pa.array(records["rung"], mask=records["rung"] == 0)
        return columns

    def numbers(self, name: str, start: int, stop: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """A numeric head's values of rows start..stop, and which of them carry a result."""
        size = self._dtype.itemsize
        values, statuses = (self._records[field][start:stop].copy() for field in (name, "status"))
        self._file.give_back(start * size, stop * size)
        return values, np.isin(statuses, [STATUSES.index(s.value) for s in WITH_RESULT])

    def fill(self, name: str, start: int, values: NDArray[Any]) -> None:
        """Set a numeric head of the rows from `start` on to values [n]."""
        size = self._dtype.itemsize
        self._records[name][start : start + len(values)] = values
        self._file.give_back(start * size, (start + len(values)) * size)

    def close(self) -> None:
        """Give back the disk."""
        for heap in self._heaps.values():
            heap.close()
        del self._records, self._seen, self._file, self._seen_file

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self) -> None:
        """Bring the waiting records into place in ascending position and count each row."""
        if not self._lot:
            return
        positions = np.concatenate([p for p, _ in self._lot])
        records = np.concatenate([r for _, r in self._lot])
        self._lot, self._lot_bytes = [], 0
        order = np.argsort(positions, kind="stable")
        positions, records = positions[order], records[order]
        size = self._dtype.itemsize
        for begin in range(0, len(positions), PAGE_ROWS):
            where = positions[begin : begin + PAGE_ROWS]
            self._records[where] = records[begin : begin + PAGE_ROWS]
            self._file.give_back(int(where[0]) * size, (int(where[-1]) + 1) * size)
        first = np.flatnonzero(np.diff(positions, prepend=-1))
        counts = np.diff(first, append=len(positions))
        rows = positions[first]
        self._seen[rows] = np.minimum(self._seen[rows] + counts, 255)
        self._seen_file.give_back(0, self.rows)

    def _engine_codes(self, column: pa.Array) -> NDArray[np.uint8]:
        for name in column.unique().to_pylist():
            if name is not None and name not in self._engines:
                self._engines.append(name)
        codes = pc.index_in(column, pa.array(self._engines, pa.string()))
        numbers: NDArray[np.int32] = codes.fill_null(-1).to_numpy()
        return (numbers + 1).astype(np.uint8)

    def _head_values(self, field: pa.Field, column: pa.Array) -> NDArray[Any]:
        if is_variable(field.type):
            return self._heaps[field.name].add(to_bytes(column))
        if pa.types.is_fixed_size_list(field.type):
            return vectors(column)
        zero = pa.scalar(0).cast(field.type)
        values: NDArray[Any] = column.fill_null(zero).to_numpy(zero_copy_only=False)
        return values

    def _head_array(self, field: pa.Field, values: NDArray[Any], null: NDArray[np.bool_]) -> pa.Array:
        if is_variable(field.type):
            return from_bytes(self._heaps[field.name].take(np.where(null, 0, values)), field.type)
        if pa.types.is_fixed_size_list(field.type):
            flat = pa.array(np.ascontiguousarray(values).reshape(-1))
            return pa.FixedSizeListArray.from_arrays(flat, type=field.type, mask=pa.array(null))
        return pa.array(np.ascontiguousarray(values), type=field.type, mask=null)


def _record_dtype(heads: Sequence[pa.Field]) -> np.dtype[Any]:
    """One row's record, padded to 8 bytes. Raises TypeError for a head column that has no place in it."""
    fields: list[tuple[Any, ...]] = [("reason", "<i8")]
    for field in heads:
        if is_variable(field.type):
            fields.append((field.name, "<i8"))
        elif pa.types.is_fixed_size_list(field.type):
            fields.append((field.name, field.type.value_type.to_pandas_dtype(), (field.type.list_size,)))
        elif pa.types.is_primitive(field.type):
            fields.append((field.name, field.type.to_pandas_dtype()))
        else:
            raise TypeError(f"result column {field.name}: the spool holds no {field.type}")
    fields += [("n_tokens", "<i4"), ("rung", "<i4"), ("status", "u1"), ("engine", "u1")]
    width = np.dtype(fields).itemsize
    return np.dtype([*fields, ("pad", "u1", (-width % 8,))])


def _decode(codes: NDArray[np.uint8], names: Sequence[str | None]) -> pa.Array:
    """Names by code as strings [n]."""
    return pa.array(names, pa.string()).take(pa.array(codes))
