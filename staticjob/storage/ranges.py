"""A file over ranged reads: one request per range for readers that seek, few for readers that go on."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

FIRST_WINDOW = 256 * 1024
LAST_WINDOW = 8 * 1024 * 1024


class RangeReader(io.RawIOBase):
    """A seekable binary file of `size` bytes whose bytes come from `fetch(start, length)`.

    A read that goes on where the last one ended fetches a window ahead, doubling from
    FIRST_WINDOW to LAST_WINDOW; a read elsewhere fetches what it asks for, and at least
    FIRST_WINDOW. `read(n)` is never short before the end, so Arrow may use it without a buffer.
    """

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self._size = size
        self._fetch = fetch
        self._position = 0
        self._window = b""
        self._window_start = 0
        self._ahead = FIRST_WINDOW

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}, before the start")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._from_window(wanted)
        if len(data) < wanted:
            data += self._refill(wanted - len(data))
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def _from_window(self, wanted: int) -> bytes:
        """Bytes at the position that the window holds; moves the position past them."""
        offset = self._position - self._window_start
        if not 0 <= offset < len(self._window):
            return b""
        data = self._window[offset : offset + wanted]
        self._position += len(data)
        return data

    def _refill(self, wanted: int) -> bytes:
        goes_on = self._window and self._position == self._window_start + len(self._window)
        self._ahead = min(2 * self._ahead, LAST_WINDOW) if goes_on else FIRST_WINDOW
        length = min(max(wanted, self._ahead), self._size - self._position)
        self._window_start = self._position
        self._window = self._fetch(self._position, length)
        if len(self._window) < length:
            raise EOFError(f"{len(self._window)} bytes where {length} were expected")
        return self._from_window(wanted)
