"""Objects as files on a disk: `/folder/name`, `folder/name` or `file:///folder/name`, taken literally."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from staticjob.errors import ConfigError, DataError, InfrastructureError, StaticJobError
from staticjob.storage import unfinished
from staticjob.storage.pinned import PinnedObject

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
MISSING = {errno.ENOENT, errno.ENOTDIR}


def to_path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def list_objects(uri: str) -> list[PinnedObject]:
    named = head(uri)
    if named:
        return [] if uri.endswith("/") else [named]
    # Spelled as the folder was: callers compare with what they joined to it (./out, file:///out).
    base = uri.rstrip("/")
    names = sorted(
        f"{base}/{name}" for name in _walk(to_path(uri), uri) if not name.endswith(unfinished.SUFFIX)
    )
    return [item for item in map(head, names) if item]


def _walk(path: Path, uri: str) -> Iterator[str]:
    """Paths of all files beneath `path`, relative to it."""

    def refuse(error: OSError) -> None:
        if error.errno not in MISSING:
            raise _explain(error, uri, "list") from error

    seen = set()  # links to folders are followed, but never in a circle
    for folder, folders, files in os.walk(path, onerror=refuse, followlinks=True):
        seen.add(os.path.realpath(folder))
        folders[:] = [name for name in folders if os.path.realpath(Path(folder, name)) not in seen]
        yield from (Path(folder, name).relative_to(path).as_posix() for name in files)


def head(uri: str) -> PinnedObject | None:
    try:
        status = to_path(uri).stat()
    except OSError as error:
        if error.errno in MISSING:
            return None
        raise _explain(error, uri, "look up") from error
    if not to_path(uri).is_file():
        return None
    return PinnedObject(uri=uri, size=status.st_size, version=_version(status))


def _version(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


def read(uri: str) -> bytes:
    return read_range(uri, 0, -1)


def read_range(uri: str, start: int, length: int, pin: PinnedObject | None = None) -> bytes:
    """As the package's `read_range`; a negative length reads to the end."""
    try:
        with to_path(uri).open("rb", buffering=0) as file:
            if pin and _version(os.fstat(file.fileno())) != pin.version:
                raise DataError(f"{uri}: changed since the plan; run again to plan the input as it is now")
            file.seek(start)
            data = io.BufferedReader(file, 1).read(length) if length else b""
    except OSError as error:
        if pin and error.errno in MISSING:
            raise DataError(
                f"{uri}: gone since the plan; restore it, or run again to plan the input as it is"
            ) from None
        raise _explain(error, uri, "read") from error
    return data


def put(uri: str, data: bytes) -> None:
    with writer(uri) as file:
        file.write(data)


def put_if_absent(uri: str, data: bytes) -> bool:
    with _unfinished(uri) as file:
        file.write(data)
        _finish(file)
        try:
            os.link(file.name, to_path(uri))
        except FileExistsError:
            return False
        except OSError as error:
            raise _explain(error, uri, "write") from error
        _sync_folder(to_path(uri).parent)
    return True


@contextmanager
def writer(uri: str) -> Iterator[BinaryIO]:
    with _unfinished(uri) as file:
        yield cast(BinaryIO, file)
        _finish(file)
        try:
            Path(file.name).replace(to_path(uri))
        except OSError as error:
            raise _explain(error, uri, "write") from error
        _sync_folder(to_path(uri).parent)


def delete(uris: Iterable[str]) -> None:
    for uri in uris:
        try:
            to_path(uri).unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in MISSING:
                raise _explain(error, uri, "delete") from error


class _File(io.FileIO):
    """A file whose failures are explained, and which is on the disk once it is closed."""

    def __init__(self, path: Path, uri: str) -> None:
        super().__init__(path, "wb")
        self._uri = uri

    def write(self, data: Buffer) -> int:
        length = memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            raise _explain(error, self._uri, "write", self.tell() + length) from error

    def close(self) -> None:
        if not self.closed:
            try:
                os.fsync(self.fileno())
            except OSError as error:
                raise _explain(error, self._uri, "write", self.tell()) from error
            finally:
                super().close()


@contextmanager
def _unfinished(uri: str) -> Iterator[io.BufferedWriter[_File]]:
    """A hidden file beside the final one; removed in the end, unless it was renamed."""
    path = to_path(uri)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = unfinished.Hidden(path)
    except OSError as error:
        raise _explain(error, uri, "write") from error
    with hidden:
        try:
            file = io.BufferedWriter(_File(hidden.path, uri), 1024 * 1024)
        except OSError as error:
            raise _explain(error, uri, "write") from error
        try:
            yield file
        finally:
            with suppress(StaticJobError):  # closing flushes; a failure in there was raised before
                file.close()


def _finish(file: io.BufferedWriter[_File]) -> None:
    """Bring all bytes to the disk; the writer may have closed its file itself."""
    if not file.closed:
        file.flush()  # apart from closing, whose own failure would hide this one
    file.close()


def _sync_folder(folder: Path) -> None:
    """Have the new name on the disk too, so that a marker never outlives what it marks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _explain(error: OSError, uri: str, doing: str, needed: int | None = None) -> StaticJobError:
    where = f"cannot {doing} {uri}"
    if error.errno in MISSING and doing != "write":
        return DataError(f"{where}: there is no such file")
    if error.errno in NO_SPACE:
        room = f"{needed:,} bytes are needed there" if needed is not None else "it is full"
        return InfrastructureError(f"{where}: no space left on device ({room}); free some and run again")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.EEXIST, *MISSING}:
        return ConfigError(f"{where}: {error.strerror}; correct the path or its permissions")
    return InfrastructureError(f"{where}: {error.strerror or error}")
