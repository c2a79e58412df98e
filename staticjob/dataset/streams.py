"""Input files as byte streams: pinned, decompressed, with failures that name the object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from staticjob import storage
from staticjob.errors import DataError, StaticJobError, shortened
from staticjob.records.prepared import InputFile


def open_file(file: InputFile) -> pa.NativeFile:
    """The file's bytes, decompressed; a stream of several gzip members or zstd frames is read to its end."""
    source = pa.PythonFile(storage.open_pinned(file.object), "r")
    return pa.CompressedInputStream(source, file.compression) if file.compression else source


@contextmanager
def reading(file: InputFile) -> Iterator[None]:
    """Turn what a parser raises into a DataError that names the object.

    Failures of the store arrive as StaticJobError already and pass; so does want of memory.
    """
    try:
        yield
    except (StaticJobError, MemoryError):
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        packed = f" ({file.compression})" if file.compression else ""
        raise DataError(
            f"{file.object.uri}: cannot be read as {file.format}{packed}: {shortened(error)}; "
            "write it again or remove it"
        ) from error
