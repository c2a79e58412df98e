"""A model run in fixed shapes: what `chunk` drives."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from staticjob.config.job import JobConfig
from staticjob.engine import attention, heap, loader
from staticjob.engine.cuda_graphs import CudaGraphs
from staticjob.engine.fusions import fuse
from staticjob.engine.heads import Field, HeadResult
from staticjob.engine.lanes import Lanes
from staticjob.engine.shape import Shape
from staticjob.engine.static_batch import StaticBatch
from staticjob.engine.vocabulary import lay_out_head
from staticjob.errors import ConfigError
from staticjob.machine.cores import cores
from staticjob.models.model_files import max_positions, model_config
from staticjob.tasks.task_module import task_module


class Rectangle(Protocol):
    """One batch in host memory; rows of length 0 are dummies."""

    @property
    def ids(self) -> NDArray[np.int32]:
        """[B, L]; what stands beyond a row's length is not looked at."""

    @property
    def lengths(self) -> NDArray[np.int32]:
        """[B]"""

    @property
    def boundaries(self) -> NDArray[np.int32]:
        """[B]: first token of a row's second segment, -1 where it has one segment."""


Batch = TypeVar("Batch", bound=Rectangle)


class StaticEngine:
    """Loads the model once and runs rectangles of the given shapes, and of no others.

    On a CPU every core is a lane that computes whole batches; a GPU runs one batch after another.
    `device` and `dtype` are what `auto` became. Raises ConfigError when the model cannot be loaded or a
    shape is longer than its positions. Not thread-safe: one caller at a time.
    """

    def __init__(self, model_dir: Path, job: JobConfig, shapes: Sequence[Shape]) -> None:
        self.config = model_config(model_dir)
        _check_positions(self.config, shapes, model_dir)
        self._torch_device = loader.resolve_device(job.model)
        dtype = loader.resolve_dtype(job.model, self._torch_device)
        self.device, self.dtype = str(self._torch_device), str(dtype).removeprefix("torch.")
        self._model_dir, self._job = model_dir, job
        self._head = task_module(job.task).head(job, model_dir)
        self._graphs = CudaGraphs() if self._torch_device.type == "cuda" else None
        if self._graphs is None:
            heap.keep_freed_memory()
        self._lanes = Lanes(1 if self._graphs else cores())
        self._model = self._load(dtype, self._torch_device)
        self._float32: nn.Module | None = None
        self._warm = False
        pad = self.config.get("pad_token_id")
        self._pad_id = pad if isinstance(pad, int) and pad >= 0 else 0
        # Largest first: an out-of-memory shows before any work is done.
        ordered = sorted(set(shapes), key=lambda s: (s.slots, s.length), reverse=True)
        self._buffers = {shape: self._allocate(shape) for shape in ordered}

    @property
    def lanes(self) -> int:
        """How many batches are computed at once."""
        return self._lanes.count

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Every shape this engine runs, largest first."""
        return tuple(self._buffers)

    def fields(self) -> list[Field]:
        """The head's output columns."""
        return self._head.fields()

    @property
    def versions(self) -> dict[str, str]:
        import transformers

        return {"torch": torch.__version__, "transformers": transformers.__version__}

    def warm_up(self, shape: Shape) -> None:
        """On CUDA, capture a shape's graph; on CPU, grow the lanes' workspaces, which all shapes share.

        Call it largest shape first: what the others need is then already there.
        """
        if self._graphs is not None:
            if shape not in self._graphs:
                buffers = self._buffers[shape].get()
                self._graphs.capture(shape, lambda: self._forward(self._model, buffers))
                self._buffers[shape].put(buffers)
        elif not self._warm:
            nothing = np.zeros((shape.batch, shape.length), np.int32)
            lengths, boundaries = np.zeros(shape.batch, np.int32), np.full(shape.batch, -1, np.int32)
            for lane in [
                self._lanes.submit(self._compute, shape, nothing, lengths, boundaries)
                for _ in range(self.lanes)
            ]:
                lane.result()
            self._warm = True

    def run(
        self,
        shape: Shape,
        ids: NDArray[np.int32],
        lengths: NDArray[np.int32],
        boundaries: NDArray[np.int32],
    ) -> HeadResult:
        """Compute one rectangle: ids [B, L], lengths [B] (0 for a dummy row), boundaries [B].

        The result's rows are in the order given; a dummy row's numbers mean nothing.
        """
        return self._lanes.submit(self._compute, shape, ids, lengths, boundaries).result()[0]

    def stream(self, batches: Iterable[Batch]) -> Generator[tuple[Batch, HeadResult, float], None, None]:
        """Compute batches, as many at once as there are lanes; each comes back in its turn.

        With every batch its result and its share of the engine's time, in seconds: what its lane took
        over the number of lanes.
        """

        def compute(batch: Batch) -> tuple[HeadResult, float]:
            batch_rows, length = batch.ids.shape
            return self._compute(Shape(length, batch_rows), batch.ids, batch.lengths, batch.boundaries)

        with closing(self._lanes.map(compute, batches)) as computed:
            for batch, (result, seconds) in computed:
                yield batch, result, seconds / self.lanes

    def recompute_float32(
        self, ids: NDArray[np.int32], lengths: NDArray[np.int32], boundaries: NDArray[np.int32]
    ) -> HeadResult:
        """Compute rows again in float32, one at a time: ids [n, L], lengths [n], boundaries [n].

        For rows whose result was not finite in a narrower type; rows that stay so are for the caller
        to report. The float32 weights are loaded at the first call, into host memory: the device's is
        planned to the last row.
        """
        host = torch.device("cpu")
        if self._float32 is None:
            suits = self.dtype == "float32" and self._torch_device == host
            self._float32 = self._model if suits else self._load(torch.float32, host)
        results = []
        for row, length, boundary in zip(ids, lengths, boundaries, strict=True):
            buffers = StaticBatch(Shape(int(length), 1), self.fields(), host, self._pad_id)
            with torch.inference_mode():
                buffers.load(row[None, :length], length[None], boundary[None])
                self._forward(self._float32, buffers)
                results.append(buffers.result())
        columns = {f.name: np.concatenate([r.columns[f.name] for r in results]) for f in self.fields()}
        return HeadResult(columns, np.concatenate([r.finite for r in results]))

    def peak_bytes(self) -> int | None:
        """Most device memory held at once; None on CPU, where it is the process's own to tell."""
        return torch.cuda.max_memory_allocated(self._torch_device) if self._graphs else None

    def _load(self, dtype: torch.dtype, device: torch.device) -> nn.Module:
        kind = attention.register(self.config)
        loads = self._head.loads
        model = loader.load_model(self._model_dir, self._job.model, device, dtype, kind, loads)
        if loads == "AutoModel":
            model = loader.encoder(model)
        if device.type == "cpu" and dtype == torch.float32:
            fuse(model)
            if self._head.scores_vocabulary:
                lay_out_head(model)
        return model

    def _allocate(self, shape: Shape) -> SimpleQueue[StaticBatch]:
        """A set of the shape's buffers for every lane: whoever computes takes one and puts it back."""
        free: SimpleQueue[StaticBatch] = SimpleQueue()
        for _ in range(self.lanes):
            free.put(StaticBatch(shape, self.fields(), self._torch_device, self._pad_id))
        return free

    def _compute(
        self,
        shape: Shape,
        ids: NDArray[np.int32],
        lengths: NDArray[np.int32],
        boundaries: NDArray[np.int32],
    ) -> tuple[HeadResult, float]:
        """One rectangle's result and the seconds it took; called on a lane."""
        if shape not in self._buffers:
            raise ValueError(
                f"shape {shape} was not planned; this engine runs {', '.join(map(str, self.shapes))}"
            )
        if self._graphs is not None:
            self.warm_up(shape)
        began = time.perf_counter()
        buffers = self._buffers[shape].get()
        try:
            # Inference mode belongs to a thread, and this may be any of the lanes.
            with torch.inference_mode():
                buffers.load(ids, lengths, boundaries)
                if self._graphs is not None:
                    self._graphs.replay(shape)
                else:
                    self._forward(self._model, buffers)
                return buffers.result(), time.perf_counter() - began
        finally:
            self._buffers[shape].put(buffers)

    def _forward(self, model: nn.Module, buffers: StaticBatch) -> None:
        with torch.inference_mode():
            buffers.store(self._head(model, buffers.inputs()))


def _check_positions(config: dict[str, object], shapes: Sequence[Shape], model_dir: Path) -> None:
    positions = max_positions(config)
    longest = max((s.length for s in shapes), default=0)
    if positions is not None and longest > positions:
        raise ConfigError(
            f"model {model_dir}: a batch of {longest} tokens is beyond its {positions} positions; "
            f"set limits.max_length to at most {positions}"
        )
