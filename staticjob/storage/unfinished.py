"""Files being written on a disk: hidden and locked, so that what a killed writer left is told apart."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

# Never listed, as an upload in progress is not.
SUFFIX = ".staticjob-unfinished"


class Hidden:
    """A new empty file beside `path`, for one writer; removed on exit, unless it was renamed.

    Its lock ends with the process, however that ends. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        sweep(path.parent)
        while True:
            self.path = path.parent / f".{path.name[:100]}.{secrets.token_hex(6)}{SUFFIX}"
            self._lock = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            with suppress(OSError):  # a disk without locks: nothing is swept there either
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if os.fstat(self._lock).st_nlink:
                return
            os.close(self._lock)  # swept in the moment before it was locked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._lock)


@cache
def sweep(folder: Path) -> None:
    """Remove what killed writers left in `folder`; a process does so once, before it writes there.

    What a killed task wrote to, its retry writes to: nothing is left where work goes on.
    """
    for left in folder.glob(f".*{SUFFIX}"):
        with suppress(OSError), left.open("r+b") as file:  # a writer's own, or gone meanwhile
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
