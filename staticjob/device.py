"""What the job's device is and has free, asked where the plan is made."""

from __future__ import annotations

from pathlib import Path

from staticjob.config import ModelConfig
from staticjob.memory import Target

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def target_of(model: ModelConfig) -> Target:
    """The device and dtype that `auto` means here, and the bytes the device has free.

    A job that names `cuda` can be planned on a machine without a GPU: its memory is then unknown.
    """
    # Deferred: only this step of planning needs torch.
    import torch

    present = torch.cuda.is_available()
    device = model.device if model.device != "auto" else "cuda" if present else "cpu"
    if not device.startswith("cuda"):
        return Target(device, model.dtype if model.dtype != "auto" else "float32", free_memory())
    narrow = "bfloat16" if not present or torch.cuda.is_bf16_supported() else "float16"
    free = torch.cuda.mem_get_info(device)[0] if present else None
    return Target(device, model.dtype if model.dtype != "auto" else narrow, free)


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
    """What the control group (version 2) still allows; its page cache can be reclaimed."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))
