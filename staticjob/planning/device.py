"""What the job's device is and has free, asked where the plan is made."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from staticjob.config.job import ModelConfig
from staticjob.machine.cores import cores
from staticjob.machine.host_memory import free_memory
from staticjob.memory import Target

_NVIDIA = Path("/dev/nvidiactl")


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
