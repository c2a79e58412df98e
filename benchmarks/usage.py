"""Processor time and memory of a benchmark's program with all its processes, and of everybody else."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def family() -> list[Path]:
    """This process and all that descend from it, as folders of /proc."""
    parents: dict[str, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            parents[stat.parent.name] = stat.read_text().rpartition(")")[2].split()[1]
    members = {str(os.getpid())}
    while more := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= more
    return [Path("/proc") / pid for pid in members]


def peak_bytes() -> int:
    """Sum of the peak resident memory of the processes of the family."""
    total = 0
    for process in family():
        with suppress(OSError):
            lines = (process / "status").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return total


def core_seconds() -> float:
    """Processor time the family has used, user and system, that of ended children included."""
    ticks = 0
    for process in family():
        with suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


def machine_seconds() -> float:
    """Processor time that all programs of this machine have used."""
    user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / TICKS
