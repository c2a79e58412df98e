"""Weights that lie in memory as the pages of their file (safetensors map it), and how to let them go.

A file stays mapped as long as any tensor of it lives, and its pages stay resident once they were read.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path

from torch import Tensor

_MAPS = Path("/proc/self/maps")
# Of madvise(2), and the same number on every Linux.
MADV_DONTNEED = 4


def let_go(weight: Tensor) -> None:
    """Give a weight's pages back to the file that they are mapped from: it was read for the last time.

    A later read fetches them again; only what was written to them would be lost, and weights are not written.
    Memory that no file backs is left alone (it goes with its last tensor), and so is all of it elsewhere than
    on Linux.
    """
    begin, size = weight.data_ptr(), weight.numel() * weight.element_size()
    # Whole pages: the first and the last one may hold a neighbour's values too.
    first, last = -(-begin // PAGESIZE) * PAGESIZE, (begin + size) // PAGESIZE * PAGESIZE
    if first < last and _of_a_file(begin, begin + size):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_DONTNEED)


def _of_a_file(begin: int, end: int) -> bool:
    """Whether these addresses are one private mapping of a file."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        # Addresses, rights, offset, device, inode, path: proc(5).
        addresses, rights, _, _, inode, *_ = line.split(maxsplit=5)
        low, high = (int(address, 16) for address in addresses.split("-"))
        if low <= begin < high:
            return end <= high and rights[3] == "p" and inode != "0"
    return False
