"""A model run in fixed shapes: what `chunk` drives, one rectangle at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from staticjob import tasks
from staticjob.config import JobConfig
from staticjob.engine import attention, heap, loader
from staticjob.engine.cuda_graphs import CudaGraphs
from staticjob.engine.fusions import fuse
from staticjob.engine.heads import Field, HeadResult
from staticjob.engine.lanes import Lanes, part_rows
from staticjob.engine.shape import Shape
from staticjob.engine.static_batch import StaticBatch
from staticjob.errors import ConfigError
from staticjob.models.model_files import max_positions, model_config


class StaticEngine:
    """Loads the model once and runs rectangles of the given shapes, and of no others.

    `device` and `dtype` are what `auto` became. Raises ConfigError when the model cannot be loaded or a
    shape is longer than its positions. Not thread-safe: one rectangle at a time.
    """

    def __init__(self, model_dir: Path, job: JobConfig, shapes: Sequence[Shape]) -> None:
        self.config = model_config(model_dir)
        _check_positions(self.config, shapes, model_dir)
        self._torch_device = loader.resolve_device(job.model)
        dtype = loader.resolve_dtype(job.model, self._torch_device)
        self.device, self.dtype = str(self._torch_device), str(dtype).removeprefix("torch.")
        self._model_dir, self._job = model_dir, job
        self._head = tasks.module(job.task).head(job, model_dir)
        self._graphs = CudaGraphs() if self._torch_device.type == "cuda" else None
        if self._graphs is None:
            heap.keep_freed_memory()
        self._lanes = Lanes(1 if self._graphs else torch.get_num_threads())
        self._model = self._load(dtype)
        self._float32: nn.Module | None = None
        self._warm = False
        pad = self.config.get("pad_token_id")
        self._pad_id = pad if isinstance(pad, int) and pad >= 0 else 0
        # Largest first: an out-of-memory shows before any work is done.
        ordered = sorted(set(shapes), key=lambda s: (s.slots, s.length), reverse=True)
        self._batches = {shape: self._allocate(shape, self._lanes.count) for shape in ordered}

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Every shape this engine runs, largest first."""
        return tuple(self._batches)

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
        batch = self._batches[shape]
        if self._graphs is not None:
            if shape not in self._graphs:
                self._graphs.capture(shape, lambda: self._compute_part(self._model, batch, 0))
        elif not self._warm:
            self._compute(batch)
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
        if shape not in self._batches:
            raise ValueError(
                f"shape {shape} was not planned; this engine runs {', '.join(map(str, self.shapes))}"
            )
        batch = self._batches[shape]
        if self._graphs is not None:
            self.warm_up(shape)
        with torch.inference_mode():
            batch.load(ids, lengths, boundaries)
            self._compute(batch)
            return batch.result()

    def recompute_float32(
        self, ids: NDArray[np.int32], lengths: NDArray[np.int32], boundaries: NDArray[np.int32]
    ) -> HeadResult:
        """Compute rows again in float32, one at a time: ids [n, L], lengths [n], boundaries [n].

        For rows whose result was not finite in a narrower type; rows that stay so are for the caller
        to report. The float32 weights are loaded at the first call.
        """
        if self._float32 is None:
            self._float32 = self._model if self.dtype == "float32" else self._load(torch.float32)
        results = []
        with torch.inference_mode():
            for row, length, boundary in zip(ids, lengths, boundaries, strict=True):
                batch = self._allocate(Shape(int(length), 1), 1)
                batch.load(row[None, :length], length[None], boundary[None])
                self._compute_part(self._float32, batch, 0)
                results.append(batch.result())
        columns = {f.name: np.concatenate([r.columns[f.name] for r in results]) for f in self.fields()}
        return HeadResult(columns, np.concatenate([r.finite for r in results]))

    def peak_bytes(self) -> int | None:
        """Most device memory held at once; None on CPU, where it is the process's own to tell."""
        return torch.cuda.max_memory_allocated(self._torch_device) if self._graphs else None

    def _load(self, dtype: torch.dtype) -> nn.Module:
        kind = attention.register(self.config)
        loads = self._head.loads
        model = loader.load_model(self._model_dir, self._job.model, self._torch_device, dtype, kind, loads)
        if loads == "AutoModel":
            model = loader.encoder(model)
        if self._graphs is None and dtype == torch.float32:
            fuse(model)
        return model

    def _allocate(self, shape: Shape, lanes: int) -> StaticBatch:
        rows = part_rows(shape, lanes)
        return StaticBatch(shape, self.fields(), self._torch_device, self._pad_id, rows)

    def _compute(self, batch: StaticBatch) -> None:
        if self._graphs is not None:
            self._graphs.replay(batch.shape)
        elif batch.parts == 1:
            self._compute_part(self._model, batch, 0)
        else:
            self._lanes.map(lambda part: self._compute_part(self._model, batch, part), batch.parts)

    def _compute_part(self, model: nn.Module, batch: StaticBatch, part: int) -> None:
        # Inference mode belongs to a thread, and this may be any of the lanes.
        with torch.inference_mode():
            batch.store(part, self._head(model, batch.part(part)))


def _check_positions(config: dict[str, object], shapes: Sequence[Shape], model_dir: Path) -> None:
    positions = max_positions(config)
    longest = max((s.length for s in shapes), default=0)
    if positions is not None and longest > positions:
        raise ConfigError(
            f"model {model_dir}: a batch of {longest} tokens is beyond its {positions} positions; "
            f"set limits.max_length to at most {positions}"
        )
