"""Temporary disk space: nameless files that vanish with the process, mapped into memory or appended to."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from staticjob.errors import ConfigError, InfrastructureError

SCRATCH = "STATICJOB_SCRATCH"
FULL = {errno.ENOSPC, errno.EDQUOT}


def scratch_folder() -> Path:
    """Where spools lie: STATICJOB_SCRATCH, else the system's folder for temporary files.

    Raises ConfigError when no file can be made there.
    """
    named = os.environ.get(SCRATCH)
    try:
        folder = Path(named or tempfile.gettempdir())
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if error.errno in FULL:
            raise _disk_error(folder, 1, error) from None
        raise ConfigError(
            f"{SCRATCH}: {named or 'not set'}: no temporary file can be made there "
            f"({error.strerror or error}); name a folder that exists and is writable"
        ) from None
    return folder


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
    """Append-only values of any length on disk; entry k is the k-th non-null value that was added."""

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
        """Store the values, large_binary; returns their numbers [n], from 1 on, 0 for null."""
        present = array.is_valid().to_numpy(zero_copy_only=False)
        values = array.drop_null()
        numbers = np.zeros(len(array), dtype=np.int64)
        numbers[present] = np.arange(self._count + 1, self._count + 1 + len(values))
        if len(values):
            _, offsets_buffer, data = values.buffers()
            offsets = np.frombuffer(offsets_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
            written = data.slice(offsets[0], offsets[-1] - offsets[0]) if data is not None else b""
            ends = offsets[1:] - offsets[0] + self._bytes
            try:
                self._data.write(written)
                self._ends.write(ends.tobytes())
            except OSError as error:
                raise _disk_error(self._folder, len(written) + ends.nbytes, error) from None
            self._bytes = int(ends[-1])
            self._count += len(values)
        return numbers

    def seal(self) -> None:
        """End adding; from here on entries can be taken."""
        try:
            self._data.flush()
            self._ends.flush()
        except OSError as error:
            raise _disk_error(self._folder, self._bytes + 8 * self._count, error) from None
        ends = mmap.mmap(self._ends.fileno(), 0)
        self._map = mmap.mmap(self._data.fileno(), 0) if self._bytes else None
        data = pa.py_buffer(self._map or b"")
        self._sealed = pa.Array.from_buffers(pa.large_binary(), self._count, [None, pa.py_buffer(ends), data])

    def take(self, numbers: NDArray[np.int64]) -> pa.Array:
        """The entries with these numbers [n] as large_binary, null for 0."""
        assert self._sealed is not None, "seal() comes first"
        found: pa.Array = self._sealed.take(pa.array(numbers - 1, mask=numbers == 0))
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
        return found

    def close(self) -> None:
        for file in (self._data, self._ends):
            # Closing writes what is left of a file that is no longer wanted: a full disk does not matter.
            with suppress(OSError):
                file.close()


def _disk_error(folder: Path, needed: int, error: OSError) -> InfrastructureError:
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    return InfrastructureError(
        f"{folder}: the merge needs {needed} bytes of temporary space, {free} are free "
        f"({error.strerror or error}); free some or point {SCRATCH} at a larger disk"
    )
