"""What the job's device is and has free, asked where the plan is made."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path

from staticjob.config.job import ModelConfig
from staticjob.cores import cores
from staticjob.memory import Target

_MEMINFO = Path("/proc/meminfo")
_NVIDIA = Path("/dev/nvidiactl")
_CGROUP = Path("/sys/fs/cgroup")


def target_of(model: ModelConfig, last_device: str | None = None, last_memory: int | None = None) -> Target:
    """The device and dtype that `auto` means, and the bytes the device has free.

    What the job file states comes first, then this machine's own GPU, then the device the last run
    saw (`last_device`, `last_memory` bytes): a planner without a GPU plans for workers that have
    one. Memory is None where nobody can know it.
    """
    present = _has_cuda()
    device = model.device if model.device != "auto" else "cuda" if present else last_device or "cpu"
    stated = int(model.device_memory_gib * 2**30) if model.device_memory_gib else None
    if not device.startswith("cuda"):
        dtype = model.dtype if model.dtype != "auto" else "float32"
        return Target(device, dtype, stated or free_memory(), lanes=cores())
    narrow, free = "bfloat16", last_memory
    if present:
        import torch

        narrow = "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
        free = torch.cuda.mem_get_info(device)[0]
    return Target(device, model.dtype if model.dtype != "auto" else narrow, stated or free)


def can_run(target: Target) -> bool:
    """Whether this machine could run the engine on that kind of device."""
    return importlib.util.find_spec("torch") is not None and (target.kind == "cpu" or _has_cuda())


def _has_cuda() -> bool:
    """Whether torch sees a GPU; it is not even imported where there is no driver."""
    if not _NVIDIA.exists() or importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def peak_resident() -> int | None:
    """Most memory this process has held since `forget_peak`, in bytes; None where Linux does not tell.

    On CPU, host memory is the device's memory.
    """
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
    """What the control group (version 2) still allows; its page cache can be reclaimed."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))
