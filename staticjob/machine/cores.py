"""How many processor cores are this process's to use."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

# Control group version 2: microseconds of processor time in a period, and the period.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cores() -> int:
    """Those it may be scheduled on, or fewer where a container's quota or OMP_NUM_THREADS says so."""
    known = [len(os.sched_getaffinity(0))]
    with suppress(OSError, ValueError):  # no control group, or "max": no quota
        quota, period = _QUOTA.read_text().split()
        known.append(math.ceil(int(quota) / int(period)))
    with suppress(ValueError):
        known.append(int(os.environ.get("OMP_NUM_THREADS", "")))
    return max(1, min(known))
