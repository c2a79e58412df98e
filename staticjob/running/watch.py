"""Staying alive and being seen: heartbeats, the stall watchdog, stop requests, the parent's death."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

from staticjob.environment import positive
from staticjob.errors import Stopped
from staticjob.machine.prctl import end_with_parent

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
# A batch takes seconds at most; an engine silent for ten minutes hangs.
STALL_SECONDS = positive("STATICJOB_STALL_SECONDS", 600.0)


def worker_name() -> str:
    """host:pid, for people who look for the process that does the work."""
    return f"{socket.gethostname()}:{os.getpid()}"


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends (Linux), so no worker is orphaned.

    Called first thing in a command started with STATICJOB_DIE_WITH_PARENT=1. The parent may
    have died before the request took effect; then this process ends at once.
    """
    if os.environ.get("STATICJOB_DIE_WITH_PARENT") != "1" or not sys.platform.startswith("linux"):
        return
    end_with_parent(signal.SIGKILL)
    expected = os.environ.get("STATICJOB_PARENT_PID")
    if os.getppid() == 1 or (expected and int(expected) != os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)


class StopFlag:
    """Turns SIGTERM and SIGINT into a stop at the next safe point; a second one ends at once.

    As a context manager it gives the signals back to whoever handled them before.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before = {n: signal.signal(n, self._handle) for n in (signal.SIGTERM, signal.SIGINT)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            os._exit(Stopped.exit_code)
        self.signal = number

    def wanted(self) -> bool:
        """Whether a stop was asked for."""
        return self.signal is not None

    def check(self) -> None:
        """Raise Stopped when a stop was asked for."""
        if self.signal is not None:
            name = signal.Signals(self.signal).name
            raise Stopped(f"stopped by {name}; finished batches are kept, run again to go on")


@contextmanager
def heartbeat(beat: Callable[[], None], seconds: float = HEARTBEAT_SECONDS) -> Iterator[None]:
    """Call `beat` every few seconds in a thread while the block runs.

    A failing beat is ignored: progress is for people to look at, and the store's real trouble
    shows in the work itself.
    """
    done = threading.Event()

    def run() -> None:
        while not done.wait(seconds):
            try:
                beat()
            except Exception as error:  # see docstring: reported, never fatal
                log.warning("progress not written: %s", error)

    thread = threading.Thread(target=run, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Watchdog:
    """Ends the process with exit code 1 and all stacks when nothing calls `alive` for too long.

    Built on faulthandler's own thread, which needs no interpreter lock: a hang inside a kernel
    or a driver call ends too.
    """

    def __init__(self, seconds: float = STALL_SECONDS) -> None:
        self._seconds = seconds

    def alive(self) -> None:
        """Restart the clock."""
        faulthandler.dump_traceback_later(self._seconds, exit=True, file=sys.stderr)

    def __enter__(self) -> Watchdog:
        self.alive()
        return self

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()
