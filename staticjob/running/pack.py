"""Run a pack of chunks in one process: the model is loaded once, the chunks run in turn."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from staticjob.engine.shape import Shape
from staticjob.errors import ConfigError
from staticjob.layout import Work
from staticjob.machine.host_memory import forget_peak
from staticjob.models import model_files
from staticjob.planning import history
from staticjob.records.commit import Commit
from staticjob.records.plan import Chunk, Plan
from staticjob.records.prepared import Prepared
from staticjob.records.rates import Ceilings
from staticjob.running.commit import committed
from staticjob.running.pack_run import Dtype, PackRun, Placement
from staticjob.running.progress import Reporter
from staticjob.running.watch import StopFlag
from staticjob.tasks.roles import TASKS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackResult:
    """Commits of all chunks of the pack, and how many of them were there before."""

    commits: tuple[Commit, ...]
    reused: int


def select(plan: Plan, ids: Sequence[str]) -> tuple[Chunk, ...]:
    """The plan's chunks with these ids, in the plan's order; ConfigError for an unknown one."""
    known = {chunk.id for chunk in plan.chunks}
    for name in ids:
        if name not in known:
            raise ConfigError(f"chunk {name}: not in the plan; `staticjob status` lists the plan's chunks")
    wanted = set(ids)
    return tuple(chunk for chunk in plan.chunks if chunk.id in wanted)


def run_pack(
    work: Work,
    prepared: Prepared,
    plan: Plan,
    ids: Sequence[str],
    stop: StopFlag,
    reporter: Reporter,
) -> PackResult:
    """Bring every named chunk to its commit; chunks that have one are left as they are.

    Raises Stopped between batches when a stop was asked for, ConfigError for an unknown chunk, and
    whatever the engine or the store raises; what was flushed is kept for the next try.
    """
    began = time.perf_counter()
    commits: dict[str, Commit] = {}
    chunks = select(plan, ids)
    for chunk in chunks:
        commit = committed(work, chunk)
        if commit:
            commits[chunk.id] = commit
            reporter.kept(commit.ledger, commit.rows)
    reused = len(commits)
    todo = [chunk for chunk in chunks if chunk.id not in commits]
    if reused:
        log.info("%d of %d chunks were already committed and are kept", reused, len(chunks))
    if todo:
        run = PackRun(work, prepared, plan, tuple(todo), stop, reporter, began)
        run_all = _generate if TASKS[prepared.config.task].generates else _prefill
        for commit in run_all(run, _placement(prepared, plan)):
            commits[commit.chunk] = commit
    return PackResult(tuple(commits[chunk.id] for chunk in chunks), reused)


def _prefill(run: PackRun, place: Placement) -> Iterator[Commit]:
    """Chunks whose rows take one pass."""
    # Deferred: these load torch, which neither a finished pack nor the CLI's help needs.
    from staticjob.chunk import ChunkRun, Worker
    from staticjob.engine.static_engine import StaticEngine

    # The report holds measured speed against what the device can do; measured once per device, and
    # before the engine is there, so that the peak of memory is the engine's own.
    known = run.plan.rates is not None and run.plan.rates.ceilings is not None
    best = None if known else _ceilings(place.device, place.dtype)
    shapes = sorted({Shape(c.length, c.batch) for c in run.todo}, key=lambda s: s.length, reverse=True)
    engine = StaticEngine(place.model_dir, run.prepared.config, shapes)
    for shape in shapes:
        engine.warm_up(shape)
    start_seconds = time.perf_counter() - run.began
    log.info(
        "engine on %s (%s) ready in %.1f s, %d shapes",
        engine.device,
        engine.dtype,
        start_seconds,
        len(shapes),
    )
    worker = Worker(engine, run.stop, run.reporter, best)
    for chunk in run.todo:
        run.stop.check()
        commit = ChunkRun(run.work, run.prepared.files, chunk, worker).run(start_seconds)
        start_seconds = 0.0
        run.reporter.committed(commit)
        yield commit


def _generate(run: PackRun, place: Placement) -> Iterator[Commit]:
    """Chunks whose rows grow."""
    from staticjob.generating.generate_pack import run_chunks

    forget_peak()
    prepared = run.prepared
    earlier = history.earlier_texts(prepared.config.output.history_uri, prepared.model.digest)
    yield from run_chunks(run, place, earlier)


def _placement(prepared: Prepared, plan: Plan) -> Placement:
    """Where the pack runs; ConfigError when the plan is for another device or type.

    Shapes, memory and results all follow from them: a job never mixes devices or types.
    """
    from staticjob.engine import loader

    device = loader.resolve_device(prepared.config.model)
    dtype = str(loader.resolve_dtype(prepared.config.model, device)).removeprefix("torch.")
    planned = plan.memory
    if (device.type, dtype) != (planned.device.split(":")[0], planned.dtype):
        raise ConfigError(
            f"planned for {planned.device} in {planned.dtype}, but this worker would run on {device} in "
            f"{dtype}; state model.device and model.dtype in the job file, then run it again"
        )
    model_dir = model_files.resolve_pinned(prepared.config.model, prepared.model)
    return Placement(model_dir, str(device), cast(Dtype, dtype))


def _ceilings(device: str, dtype: str) -> Ceilings:
    import torch

    from staticjob.engine import calibrate

    best = calibrate.ceilings(device, dtype)
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    forget_peak()
    return best
