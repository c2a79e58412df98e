"""What a pack's run is given: the chunks to bring to their commit, and the device they run on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from staticjob.layout import Work
from staticjob.records.plan import Chunk, Plan
from staticjob.records.prepared import Prepared
from staticjob.running.progress import Reporter
from staticjob.running.watch import StopFlag

Dtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class PackRun:
    """Chunks of one process; `began` is when it started, by time.perf_counter."""

    work: Work
    prepared: Prepared
    plan: Plan
    todo: tuple[Chunk, ...]
    stop: StopFlag
    reporter: Reporter
    began: float


@dataclass(frozen=True)
class Placement:
    """Where the model's files are, and where and in which type it runs."""

    model_dir: Path
    device: str
    dtype: Dtype
