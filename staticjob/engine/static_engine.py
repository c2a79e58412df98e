"""A model run in fixed shapes: what `chunk` drives, one rectangle at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from staticjob.config import JobConfig
from staticjob.engine import attention, loader
from staticjob.engine.heads import HEADS, Field, HeadResult
from staticjob.engine.shape import Shape
from staticjob.engine.static_batch import StaticBatch
from staticjob.errors import ConfigError
from staticjob.model_files import max_positions, model_config


class StaticEngine:
    """Loads the model once and runs rectangles of the given shapes, and of no others.

    `device` and `dtype` are what `auto` became. Raises ConfigError when the model cannot be loaded or a
    shape is longer than its positions.
    """

    def __init__(self, model_dir: Path, job: JobConfig, shapes: Sequence[Shape]) -> None:
        started = time.perf_counter()
        self.config = model_config(model_dir)
        _check_positions(self.config, shapes, model_dir)
        device = loader.resolve_device(job.model)
        dtype = loader.resolve_dtype(job.model, device)
        self.device, self.dtype = str(device), str(dtype).removeprefix("torch.")
        self._model_dir, self._job = model_dir, job
        self._model = loader.load_model(model_dir, job.model, device, dtype, attention.register())
        self._head = HEADS[job.task](job, model_dir)
        pad = self.config.get("pad_token_id")
        self._pad_id = pad if isinstance(pad, int) and pad >= 0 else 0
        # Largest first: an out-of-memory shows before any work is done.
        ordered = sorted(set(shapes), key=lambda s: (s.slots, s.length), reverse=True)
        self._batches = {shape: StaticBatch(shape, device, self._pad_id) for shape in ordered}
        self._float32: nn.Module | None = None
        self.start_seconds = time.perf_counter() - started

    def fields(self) -> list[Field]:
        """The head's output columns."""
        fields: list[Field] = self._head.fields()
        return fields

    @property
    def versions(self) -> dict[str, str]:
        import transformers

        return {"torch": torch.__version__, "transformers": transformers.__version__}

    def warm_up(self, shape: Shape) -> None:
        """First run of a shape: kernels are chosen and buffers filled."""
        lengths = np.full(shape.batch, shape.length, np.int32)
        self.run(shape, np.zeros((shape.batch, shape.length), np.int32), lengths, lengths)

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
        batch = self._batches[shape]
        with torch.inference_mode():
            batch.load(ids, lengths)
            batch.compute(self._forward)
            assert batch.finite is not None
            columns = {name: c.cpu().numpy().copy() for name, c in batch.columns.items()}
            return HeadResult(columns, batch.finite.cpu().numpy() | (lengths == 0))

    def recompute_float32(
        self, ids: NDArray[np.int32], lengths: NDArray[np.int32], boundaries: NDArray[np.int32]
    ) -> HeadResult:
        """Compute rows again in float32, one at a time: ids [n, L], lengths [n].

        For rows whose result was not finite in a narrower type; rows that stay so are for the caller
        to report. The float32 weights are loaded at the first call.
        """
        device = torch.device(self.device)
        model = self._float32 or loader.load_model(
            self._model_dir, self._job.model, device, torch.float32, attention.register()
        )
        self._float32 = model
        results = []
        with torch.inference_mode():
            for row, length in zip(ids, lengths, strict=True):
                one = StaticBatch(Shape(int(length), 1), device, self._pad_id)
                one.load(row[None, :length], np.array([length], np.int32))
                one.compute(lambda i, m: self._head(model(i, attention_mask=m).last_hidden_state, m))
                results.append(one)
        columns = {
            f.name: np.concatenate([r.columns[f.name].cpu().numpy() for r in results]) for f in self.fields()
        }
        return HeadResult(columns, np.array([bool(r.finite) for r in results]))

    def peak_bytes(self) -> int | None:
        """Most device memory held at once; None on CPU, where it is the process's own to tell."""
        if self.device == "cpu":
            return None
        return torch.cuda.max_memory_allocated()

    def _forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """ids [B, L], mask [B, L] → the head's columns."""
        hidden = self._model(ids, attention_mask=mask).last_hidden_state
        columns: dict[str, Tensor] = self._head(hidden, mask)
        return columns


def _check_positions(config: dict[str, object], shapes: Sequence[Shape], model_dir: Path) -> None:
    positions = max_positions(config)
    longest = max((s.length for s in shapes), default=0)
    if positions is not None and longest > positions:
        raise ConfigError(
            f"model {model_dir}: a batch of {longest} tokens is beyond its {positions} positions; "
            f"set limits.max_length to at most {positions}"
        )
