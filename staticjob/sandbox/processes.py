"""Finding and ending every process of a sandbox, wherever in the process tree it went.

Airflow's components start workers, which start tasks, which start commands in sessions of their
own; a process group does not hold them all. They all inherit the environment: a marker there does.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from staticjob.errors import InfrastructureError

MARKER = "STATICJOB_SANDBOX"
# A killed process ends at once, unless it waits for a disk or device that does not answer.
KILL_SECONDS = 30.0


def marked(value: str) -> list[int]:
    """Process ids of this machine, zombies left out, whose environment holds MARKER=value."""
    wanted = f"{MARKER}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # ended meanwhile, or another user's
            if wanted in (entry / "environ").read_bytes().split(b"\0") and not _is_zombie(entry):
                found.append(int(entry.name))
    return found


def end_marked(value: str, grace: float) -> None:
    """SIGTERM to all marked processes, SIGKILL to those left after `grace` seconds, until none is left.

    New ones may be started while the others end, so the list is read again until it is empty. Raises
    InfrastructureError for those that do not end.
    """
    _send(marked(value), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while marked(value) and time.monotonic() < deadline:
        time.sleep(0.1)
    deadline = time.monotonic() + KILL_SECONDS
    while left := marked(value):
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"{MARKER}={value}: processes {', '.join(map(str, left))} do not end, killed as they are; "
                "see what they wait for (ps -o pid,stat,wchan,cmd), then stop again"
            )
        _send(left, signal.SIGKILL)
        time.sleep(0.05)


def _is_zombie(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
