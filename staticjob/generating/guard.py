"""A process that leaves none behind: whatever it started ends with it, and it ends with its parent.

The process splits in two before anything heavy is loaded. The child does the work; the parent, the
guard, waits for it, adopts every orphan among its descendants and ends them all when the work ends or
when its own parent dies, however that happens. Linux only, as is the kernel's help it relies on.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from staticjob.machine.prctl import adopt_orphans, end_with_parent


def run_guarded(work: Callable[[], int]) -> NoReturn:
    """Run `work` in a child of this process and exit with its code, 128 + signal if it was killed."""
    parent = os.getppid()
    child = os.fork()
    if child == 0:
        end_with_parent(signal.SIGKILL)
        try:
            code = work()
        except BaseException:  # an exit too: past here the child would go on with its parent's program
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        os._exit(code)
    signal.signal(signal.SIGTERM, _end)
    adopt_orphans()
    end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        _end()
    status = 0
    while True:
        with suppress(InterruptedError):
            pid, status = os.wait()
            if pid == child:
                break
    end_descendants()
    os._exit(os.waitstatus_to_exitcode(status) % 256)


def _end(number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
    end_descendants()
    os._exit(128 + number)


def end_descendants() -> None:
    """Kill every process this one started, directly or not, until there is none."""
    while children := _children():
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    """Direct children of this process; their orphans become direct children when they end."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # pid (name) state ppid …; the name may hold anything. A process may end while it is read.
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(stat.parent.name))
    return found
