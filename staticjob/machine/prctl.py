"""What a process asks of the Linux kernel about its parent and its orphans: prctl(2)."""

from __future__ import annotations

import ctypes
import os
import signal

from staticjob.errors import InfrastructureError

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# Loaded before any fork: a child may have to call it before it may load anything.
_LIBC = ctypes.CDLL(None, use_errno=True)


def end_with_parent(how: signal.Signals) -> None:
    """Send this process the signal `how` when its parent ends: the thread that started it, to be exact.

    A parent that has ended before goes unnoticed. Raises InfrastructureError where the kernel refuses.
    """
    _prctl(PR_SET_PDEATHSIG, how)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise InfrastructureError(f"prctl({option}) failed: {os.strerror(ctypes.get_errno())}")
