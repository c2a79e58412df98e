"""Ties a task's process to the Airflow worker above it, as the command is tied to the task.

A Celery worker that is killed outright takes its task's supervisor along, but not the task itself:
that would go on computing, unseen, on a device that the next worker is about to use.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PR_SET_PDEATHSIG = 1


@contextmanager
def dying_with_parent() -> Iterator[None]:
    """Have the kernel kill this process when its parent ends within the block (Linux).

    SIGKILL, because a task without a supervisor can neither log nor report; what it has stored is kept.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
