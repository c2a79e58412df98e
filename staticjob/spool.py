"""A local spool: results of a merge group's rows by row position, on disk, at flat memory.

Results arrive in the order of token counts and leave in the order of the input. Each row has
one fixed-width record in a memory-mapped temporary file, so that bringing it into place
touches one page; pages are given back as soon as they are written or read. Text of any length
lies end to end in a `Heap`, and the record holds its number there.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from staticjob.errors import InfrastructureError
from staticjob.records import Status
from staticjob.results import vectors

SCRATCH = "STATICJOB_SCRATCH"
# Records are brought into place in sorted lots: many rows per touched page where records are small.
LOT_BYTES = 32 * 2**20
# Rows between two returns of touched pages: at a page a row, 16 MiB.
PAGE_ROWS = 4096
# Rows whose count is looked at at once, and how many faulty rows are named.
COUNT_ROWS = 2**20
NAMED = 5
STATUSES = tuple(s.value for s in Status)
ANSWERED = (Status.OK, Status.TRUNCATED)


@dataclass(frozen=True)
class Coverage:
    """Rows that were not seen exactly once: how many, and the first positions of each kind."""

    missing: int
    doubled: int
    first_missing: tuple[int, ...]
    first_doubled: tuple[int, ...]


def scratch_folder() -> Path:
    """Where spools lie: STATICJOB_SCRATCH, else the system's folder for temporary files."""
    return Path(os.environ.get(SCRATCH) or tempfile.gettempdir())


class Mapped:
    """A nameless file of `size` bytes in `folder`, all its blocks reserved, mapped into memory.

    It vanishes with the process, however that ends. Reserving first turns a full disk into an
    InfrastructureError here instead of a bus error at some later store.
    """

    def __init__(self, folder: Path, size: int) -> None:
        try:
            free = shutil.disk_usage(folder).free
            if free < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, max(1, size))
                self._map = mmap.mmap(file.fileno(), max(1, size))
        except OSError as error:
            raise _disk_error(folder, size, error) from None

    def array(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        return np.frombuffer(self._map, dtype=dtype, count=count)

    def give_back(self, start: int, stop: int) -> None:
        """Let go of the pages of bytes start..stop; their contents stay in the file."""
        first = start - start % mmap.PAGESIZE
        if stop > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, stop - first)


class Heap:
    """Append-only text on disk; entry k is the k-th non-null value that was added."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by close()
        self._ends = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._ends.write(bytes(8))  # where the first entry begins
        self._bytes = 0
        self._count = 0
        self._map: mmap.mmap | None = None
        self._sealed: pa.Array | None = None

    def add(self, array: pa.Array) -> NDArray[np.int64]:
        """Store the values; returns their numbers [n], from 1 on, 0 for null."""
        present = array.is_valid().to_numpy(zero_copy_only=False)
        values = array.drop_null().cast(pa.large_string())
        numbers = np.zeros(len(array), dtype=np.int64)
        numbers[present] = np.arange(self._count + 1, self._count + 1 + len(values))
        if len(values):
            _, offsets_buffer, data = values.buffers()
            offsets = np.frombuffer(offsets_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
            text = data.slice(offsets[0], offsets[-1] - offsets[0]) if data is not None else b""
            ends = offsets[1:] - offsets[0] + self._bytes
            try:
                self._data.write(text)
                self._ends.write(ends.tobytes())
            except OSError as error:
                raise _disk_error(self._folder, len(text) + ends.nbytes, error) from None
            self._bytes = int(ends[-1])
            self._count += len(values)
        return numbers

    def seal(self) -> None:
        """End adding; from here on entries can be taken."""
        self._data.flush()
        self._ends.flush()
        ends = mmap.mmap(self._ends.fileno(), 0)
        self._map = mmap.mmap(self._data.fileno(), 0) if self._bytes else None
        data = pa.py_buffer(self._map or b"")
        self._sealed = pa.LargeStringArray.from_buffers(self._count, pa.py_buffer(ends), data)

    def take(self, numbers: NDArray[np.int64]) -> pa.Array:
        """The entries with these numbers [n] as large_string, null for 0."""
        assert self._sealed is not None, "seal() comes first"
        found: pa.Array = self._sealed.take(pa.array(numbers - 1, mask=numbers == 0))
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
        return found

    def close(self) -> None:
        self._data.close()
        self._ends.close()


class Spool:
    """Result columns of `rows` rows, written in any order and read back by position.

    heads: the task's own columns; fixed-size lists and numbers lie in the record, strings in a
        heap. They are null for rows whose status carries no result.
    """

    def __init__(self, rows: int, heads: Sequence[pa.Field], folder: Path) -> None:
        self.rows = rows
        self._heads = tuple(heads)
        self._dtype = _record_dtype(self._heads)
        self._file = Mapped(folder, rows * self._dtype.itemsize)
        self._records = self._file.array(self._dtype, rows)
        self._seen_file = Mapped(folder, rows)
        self._seen = self._seen_file.array(np.dtype(np.uint8), rows)
        texts = ["reason", *(f.name for f in heads if _is_text(f.type))]
        self._heaps = {name: Heap(folder) for name in texts}
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
        records["reason"] = self._heaps["reason"].add(batch["reason"])
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
        answered = np.isin(records["status"], [STATUSES.index(s.value) for s in ANSWERED])
        columns = {f.name: self._head_array(f, records[f.name], ~answered) for f in self._heads}
        columns["status"] = _decode(records["status"], STATUSES)
        columns["reason"] = self._heaps["reason"].take(records["reason"]).cast(pa.string())
        columns["n_tokens"] = pa.array(records["n_tokens"])
        columns["engine"] = _decode(records["engine"], (None, *self._engines))
        columns["rung"] = pa.array(records["rung"], mask=records["rung"] == 0)
        return columns

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
        if _is_text(field.type):
            return self._heaps[field.name].add(column)
        if pa.types.is_fixed_size_list(field.type):
            return vectors(column)
        values: NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
        return values

    def _head_array(self, field: pa.Field, values: NDArray[Any], null: NDArray[np.bool_]) -> pa.Array:
        if _is_text(field.type):
            return self._heaps[field.name].take(np.where(null, 0, values)).cast(field.type)
        if pa.types.is_fixed_size_list(field.type):
            flat = pa.array(np.ascontiguousarray(values).reshape(-1))
            return pa.FixedSizeListArray.from_arrays(flat, type=field.type, mask=pa.array(null))
        return pa.array(np.ascontiguousarray(values), type=field.type, mask=null)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _record_dtype(heads: Sequence[pa.Field]) -> np.dtype[Any]:
    """One row's record, padded to 8 bytes. Raises TypeError for a head column that has no place in it."""
    fields: list[tuple[Any, ...]] = [("reason", "<i8")]
    for field in heads:
        if _is_text(field.type):
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


def _disk_error(folder: Path, needed: int, error: OSError) -> InfrastructureError:
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    return InfrastructureError(
        f"{folder}: the merge needs {needed} bytes of temporary space, {free} are free "
        f"({error.strerror or error}); free some or point {SCRATCH} at a larger disk"
    )
