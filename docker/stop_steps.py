#!/usr/bin/env python3
"""Before a worker goes: ask its steps to stop, and wait until what they finished is flushed.

A pod's or a container's stop hook runs this; a step ends with exit code 3 and is tried elsewhere,
where it goes on at its first unflushed batch. Usage: stop_steps.py [ANCESTOR], the process beneath
which steps are looked for; default 1, the container's first.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def steps_beneath(ancestor: int) -> list[int]:
    """Process ids of all `python -m staticjob …` that descend from `ancestor`."""
    parents: dict[int, int] = {}
    steps: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            pid = int(folder.name)
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parents[pid] = int(parent)
            if state != "Z" and words[1:3] == [b"-m", b"staticjob"]:
                steps.append(pid)
    return [pid for pid in steps if _descends(pid, ancestor, parents)]


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor


def main(ancestor: int) -> None:
    """Send SIGTERM once to every step, then wait for as long as the container is given."""
    for pid in steps_beneath(ancestor):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    while steps_beneath(ancestor):
        time.sleep(0.2)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
