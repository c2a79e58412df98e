"""What this process has held of the machine's memory, and what is free of it. On CPU it is the device's."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
# Control group version 2.
_CGROUP = Path("/sys/fs/cgroup")


def peak_resident() -> int | None:
    """Most memory this process has held since `forget_peak`, in bytes; None where Linux does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def forget_peak() -> None:
    """Start `peak_resident` anew from what is held now."""
    with suppress(OSError):  # not Linux, or a sandbox that forbids it: the peak then counts from the start
        Path("/proc/self/clear_refs").write_text("5")


def free_memory() -> int | None:
    """Bytes a new process could use: available memory, or less where a container is limited."""
    known = [size for size in (_available(), _container_room()) if size is not None]
    return min(known, default=None)


def _available() -> int | None:
    if not _MEMINFO.exists():
        return None
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _container_room() -> int | None:
    """What the control group still allows; its page cache can be reclaimed."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))
