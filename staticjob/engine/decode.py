"""Bounded generation in fixed rectangles: prefill [B, L] once, then steps of [B, 1] until every row ended.

A batch's membership is fixed from admission to completion. The host looks at the rows every few steps
only; between two looks everything is device work in fixed shapes, which a GPU replays as one graph per
(batch, cache rung).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticjob.config import ModelConfig
from staticjob.dimensions import Dimensions
from staticjob.engine import loader
from staticjob.engine.active_rows import ActiveRows
from staticjob.engine.causal_model import CausalModel, load_causal
from staticjob.engine.cuda_graphs import CudaGraphs
from staticjob.engine.decode_state import DecodeState, Ending, Finish
from staticjob.engine.kv_cache import KVCache, LayerCache, cache_rungs
from staticjob.engine.sampling import Sampling
from staticjob.engine.shape import Shape
from staticjob.errors import ConfigError
from staticjob.model_files import max_positions, model_config

# Steps between two looks. On a GPU a look waits for the launched work, and a batch may run up to
# LOOK_STEPS - 1 steps longer than its last row; on a CPU it costs nothing.
LOOK_STEPS = {"cpu": 1, "cuda": 8}
# Slots of one prefill product; a CPU's caches favour small rectangles. See memory.BEST_BUDGET.
PREFILL_SLOTS = {"cpu": 4_096, "cuda": 65_536}
GREEDY = Sampling()
AT_THE_CAP = Ending()


@dataclass(frozen=True)
class Look:
    """What the host sees after `step` decode passes, `seconds` after the batch began."""

    step: int
    active: int  # rows that go on
    seconds: float
    tokens: NDArray[np.int64]  # [B, cap + 1]; valid up to counts
    counts: NDArray[np.int64]  # [B]
    finish: NDArray[np.int8]  # [B]


@dataclass(frozen=True)
class Answer:
    """What an observer of a look wants: rows that have ended (a stop string), and whether to stop here."""

    ended: Sequence[int] = ()
    hand_over: bool = False


@dataclass(frozen=True)
class Generated:
    """One batch: row b generated tokens[b, :counts[b]], its end-of-sequence token included."""

    tokens: NDArray[np.int32]  # [B, cap]
    counts: NDArray[np.int32]  # [B]
    finish: NDArray[np.int8]  # [B] of Finish; ACTIVE for rows that were handed over
    logprobs: NDArray[np.float32] | None  # [B, cap]
    curve: ActiveRows
    prefill_seconds: float
    decode_seconds: float


def _carry_on(look: Look) -> Answer:
    return Answer()


class StaticDecoder:
    """Loads a model once and generates in the given prompt shapes, and in no others.

    `shapes` are prompt rectangles (L, B); every row may grow by `cap` tokens. Raises ConfigError when the
    model cannot be loaded or a rectangle and the cap are beyond its positions.
    """

    def __init__(
        self,
        model_dir: Path,
        model: ModelConfig,
        shapes: Sequence[Shape],
        cap: int,
        sampling: Sampling = GREEDY,
        ending: Ending = AT_THE_CAP,
    ) -> None:
        started = time.perf_counter()
        config = model_config(model_dir)
        self.positions = max_positions(config)
        longest = max(shape.length for shape in shapes)
        if self.positions is not None and longest > self.positions:
            raise ConfigError(
                f"model {model_dir}: a prompt of {longest} tokens is beyond its {self.positions} positions; "
                f"set limits.max_length to at most {self.positions}"
            )
        device = loader.resolve_device(model)
        dtype = loader.resolve_dtype(model, device)
        self.device, self.dtype, self.cap = str(device), str(dtype).removeprefix("torch."), cap
        self._kind = device.type
        self._model: CausalModel = load_causal(model_dir, model, device, dtype, longest + cap)
        sizes = Dimensions.of(config)
        # Rectangles of one batch size share a cache, and so its graphs: the longest decides its slots.
        lengths = {s.batch: s.length for s in sorted(shapes)}
        slots = {batch: Shape(length + cap - 1, batch) for batch, length in lengths.items()}
        self._cache = KVCache(sizes, tuple(slots.values()), device, dtype)
        self._layers = {batch: self._cache.layers(shape) for batch, shape in slots.items()}
        self._states = {
            batch: DecodeState(batch, cap, self._model.vocabulary, sampling, ending, device)
            for batch in lengths
        }
        self._graphs = CudaGraphs() if self._kind == "cuda" else None
        self.start_seconds = time.perf_counter() - started

    @property
    def versions(self) -> dict[str, str]:
        import transformers

        return {"torch": torch.__version__, "transformers": transformers.__version__}

    @property
    def cache_bytes(self) -> int:
        """Bytes of the key-value cache: those predicted for the largest shape."""
        return self._cache.bytes

    def peak_bytes(self) -> int | None:
        """Most device memory held at once; None on CPU, where it is the process's own to tell."""
        return torch.cuda.max_memory_allocated(self.device) if self._kind == "cuda" else None

    def warm_up(self, shape: Shape) -> None:
        """First run of a shape: kernels are chosen and, on a GPU, a graph per cache rung is captured."""
        ids = np.zeros((shape.batch, shape.length), np.int32)
        lengths = np.full(shape.batch, shape.length, np.int32)
        limits, keys = np.full(shape.batch, 2, np.int32), np.zeros(shape.batch, np.int64)
        if self._graphs is not None:
            state = self._states[shape.batch]
            for rung in reversed(cache_rungs(shape.length, self.cap, self._kind)):
                if Shape(rung, shape.batch) in self._graphs:
                    continue
                state.load(lengths, limits, keys)
                with torch.inference_mode():
                    self._graphs.capture(Shape(rung, shape.batch), lambda r=rung: self._step(state, r))  # type: ignore[misc]
        self.generate(shape, ids, lengths, keys, limits=limits)

    def generate(
        self,
        shape: Shape,
        ids: NDArray[np.int32],
        lengths: NDArray[np.int32],
        keys: NDArray[np.int64],
        *,
        limits: NDArray[np.int32] | None = None,
        look_steps: int | None = None,
        observer: Callable[[Look], Answer] = _carry_on,
    ) -> Generated:
        """Run one batch to its end, or to the look at which `observer` hands it over.

        ids [B, L]; lengths [B], 0 for a dummy row; keys [B] from sampling.stream_keys; limits [B] the
        tokens each row may generate (default: the cap), cut to what the model's positions leave room for.
        """
        started = time.perf_counter()
        state, layers = self._states[shape.batch], self._layers[shape.batch]
        every = look_steps or LOOK_STEPS[self._kind]
        rows = int((lengths > 0).sum())
        with torch.inference_mode():
            state.load(lengths, self._limits(lengths, limits), keys)
            self._cache.clear()
            state.advance(self._prefill(shape, ids, lengths, layers))
            look = self._look(state, 0, started)
            prefilled = time.perf_counter()
            rungs = cache_rungs(shape.length, self.cap, self._kind)
            handover = None
            while look.active:
                answer = observer(look)
                state.end_rows(answer.ended)
                if len(answer.ended) == look.active:
                    break
                if answer.hand_over:
                    handover = look.step
                    break
                for step in range(look.step, min(look.step + every, self.cap - 1)):
                    self._run_step(state, next(r for r in rungs if r > shape.length + step))
                look = self._look(state, step + 1, started)
            seconds = prefilled - started, time.perf_counter() - prefilled
            active = tuple(state.active[: look.step].tolist())
            curve = ActiveRows(rows, shape.batch * look.step, active, handover)
            return Generated(
                tokens=state.output[:, : self.cap].int().cpu().numpy(),
                counts=state.counts.int().cpu().numpy(),
                finish=state.finish.cpu().numpy().copy(),
                logprobs=state.logprobs[:, : self.cap].cpu().numpy().copy() if state.keeps_logprobs else None,
                curve=curve,
                prefill_seconds=seconds[0],
                decode_seconds=seconds[1],
            )

    def _limits(self, lengths: NDArray[np.int32], limits: NDArray[np.int32] | None) -> NDArray[np.int32]:
        """Tokens each row may generate: what was asked for, within the cap and the model's positions."""
        wanted = np.full(len(lengths), self.cap, np.int32) if limits is None else np.minimum(limits, self.cap)
        if self.positions is not None:
            wanted = np.minimum(wanted, self.positions - lengths)
        allowed: NDArray[np.int32] = np.maximum(wanted, 1)
        return allowed

    def _prefill(
        self, shape: Shape, ids: NDArray[np.int32], lengths: NDArray[np.int32], layers: Sequence[LayerCache]
    ) -> Tensor:
        """Fill the cache with the prompts; logits [B, V] of each row's last position."""
        device = self._cache.device
        used = np.arange(shape.length) < lengths[:, None]
        tokens = torch.from_numpy(np.where(used, ids, 0).astype(np.int64)).to(device)
        last = torch.from_numpy(np.maximum(lengths, 1).astype(np.int64) - 1).to(device)
        rows = max(1, PREFILL_SLOTS[self._kind] // shape.length)
        parts = []
        for first in range(0, shape.batch, rows):
            part = slice(first, first + rows)
            caches = [LayerCache(layer.keys[part], layer.values[part]) for layer in layers]
            parts.append(self._model.prefill(tokens[part], last[part], caches))
        return torch.cat(parts)

    def _run_step(self, state: DecodeState, rung: int) -> None:
        captured = Shape(rung, state.batch)
        if self._graphs is not None and captured in self._graphs:
            self._graphs.replay(captured)
        else:
            self._step(state, rung)

    def _step(self, state: DecodeState, rung: int) -> None:
        """One decode pass and the token it gives every active row."""
        logits = self._model.step(state.tokens, state.slots, rung, self._layers[state.batch])
        state.next_slots()
        state.advance(logits)

    def _look(self, state: DecodeState, step: int, started: float) -> Look:
        finish = state.finish.cpu().numpy()
        return Look(
            step=step,
            active=int((finish == Finish.ACTIVE).sum()),
            seconds=time.perf_counter() - started,
            tokens=state.output.cpu().numpy(),
            counts=state.counts.cpu().numpy(),
            finish=finish,
        )
