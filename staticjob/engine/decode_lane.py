"""One batch at a time from admission to completion: prefill [B, L], then steps of [B, 1].

Between two looks everything is device work in fixed shapes, which a GPU replays as one captured graph
per (batch, cache rung).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticjob.engine.active_rows import ActiveRows
from staticjob.engine.cache_slots import cache_rungs, cache_slots, prefill_slices
from staticjob.engine.causal_model import CausalModel
from staticjob.engine.cuda_graphs import CudaGraphs
from staticjob.engine.decode_batch import Answer, Generated, Look, Prompts, carry_on
from staticjob.engine.decode_state import DecodeState, Ending, Finish
from staticjob.engine.kv_cache import KVCache, LayerCache
from staticjob.engine.sampling import Sampling
from staticjob.engine.shape import Shape
from staticjob.ledger import Ledger, batch_ledger
from staticjob.models.dimensions import Dimensions

# Steps between two looks. On a GPU a look waits for the launched work, and a batch may run up to
# LOOK_STEPS - 1 steps longer than its last row; on a CPU it costs nothing.
LOOK_STEPS = {"cpu": 1, "cuda": 8}


@dataclass(frozen=True)
class DecodeRules:
    """What holds for every batch of a decoder."""

    cap: int
    sampling: Sampling
    ending: Ending
    positions: int | None  # of the model; None where unbounded


class DecodeLane:
    """A cache and the buffers of every shape; runs the batches it is given one after another."""

    def __init__(
        self,
        model: CausalModel,
        sizes: Dimensions,
        rules: DecodeRules,
        shapes: Sequence[Shape],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._model, self._rules, self._kind = model, rules, device.type
        # Rectangles of one batch size share a cache, and so its graphs: the longest decides its slots.
        lengths = {s.batch: s.length for s in sorted(shapes)}
        slots = {b: Shape(cache_slots(length, rules.cap), b) for b, length in lengths.items()}
        self.cache = KVCache(sizes, tuple(slots.values()), device, dtype)
        self._layers = {batch: self.cache.layers(shape) for batch, shape in slots.items()}
        self._states = {
            batch: DecodeState(batch, rules.cap, model.vocabulary, rules.sampling, rules.ending, device)
            for batch in lengths
        }
        self._graphs = CudaGraphs() if self._kind == "cuda" else None

    def warm_up(self, shape: Shape) -> None:
        """First run of a shape: kernels are chosen and, on a GPU, a graph per cache rung is captured."""
        zeros, lengths = np.zeros((shape.batch, shape.length), np.int32), np.full(shape.batch, shape.length)
        keys, limits = np.zeros(shape.batch, np.int64), np.full(shape.batch, 2, np.int32)
        if self._graphs is not None:
            state = self._states[shape.batch]
            for rung in reversed(cache_rungs(shape.length, self._rules.cap, self._kind)):
                if Shape(rung, shape.batch) in self._graphs:
                    continue
                state.load(lengths, limits, keys)
                with torch.inference_mode():
                    self._graphs.capture(Shape(rung, shape.batch), lambda r=rung: self._step(state, r))  # type: ignore[misc]
        self.generate(Prompts(shape, zeros, lengths.astype(np.int32), keys, limits))

    def generate(
        self,
        prompts: Prompts,
        observer: Callable[[Look], Answer] = carry_on,
        look_steps: int | None = None,
        index: int = 0,
    ) -> Generated:
        """Run one batch until its last row ends, or to the look at which `observer` hands it over."""
        started = time.perf_counter()
        shape, cap = prompts.shape, self._rules.cap
        state = self._states[shape.batch]
        every = look_steps or LOOK_STEPS[self._kind]
        rungs = cache_rungs(shape.length, cap, self._kind)
        # Inference mode belongs to a thread.
        with torch.inference_mode():
            state.load(prompts.lengths, self._limits(prompts), prompts.keys)
            self.cache.clear()
            state.advance(self.prefill(prompts))
            look = _look(state, index, 0, started)
            prefilled = time.perf_counter()
            while look.active:
                answer = observer(look)
                state.end_rows(answer.ended)
                if len(answer.ended) == look.active:
                    break
                if answer.hand_over:
                    break
                for step in range(look.step, min(look.step + every, cap - 1)):
                    self._run_step(state, next(r for r in rungs if r > shape.length + step))
                look = _look(state, index, step + 1, started)
            ended = time.perf_counter()
            rows, left = int((prompts.lengths > 0).sum()), int((state.finish == Finish.ACTIVE).sum())
            return Generated(
                tokens=state.output[:, :cap].int().cpu().numpy(),
                counts=state.counts.int().cpu().numpy(),
                finish=state.finish.cpu().numpy().copy(),
                logprobs=state.logprobs[:, :cap].cpu().numpy().copy() if state.keeps_logprobs else None,
                prompts=self._prompt_slots(prompts),
                curve=ActiveRows(rows, look.curve[: look.step], left),
                prefill_seconds=prefilled - started,
                decode_seconds=ended - prefilled,
            )

    def prefill(self, prompts: Prompts) -> Tensor:
        """Fill the cache with the prompts; logits [B, V] of each row's last position."""
        layers = self._layers[prompts.shape.batch]
        used = np.arange(prompts.shape.length) < prompts.lengths[:, None]
        ids = torch.from_numpy(np.where(used, prompts.ids, 0).astype(np.int64)).to(self.cache.device)
        last = torch.from_numpy(np.maximum(prompts.lengths, 1).astype(np.int64) - 1).to(self.cache.device)
        parts = []
        for part, length in prefill_slices(prompts.lengths, prompts.shape.length, self._kind):
            caches = [LayerCache(layer.keys[part], layer.values[part]) for layer in layers]
            parts.append(self._model.prefill(ids[part, :length], last[part], caches))
        return torch.cat(parts)

    def _prompt_slots(self, prompts: Prompts) -> Ledger:
        """Slots of a batch's prefill."""
        total = Ledger()
        for part, length in prefill_slices(prompts.lengths, prompts.shape.length, self._kind):
            lengths = prompts.lengths[part]
            total += batch_ledger(lengths[lengths > 0], length, len(lengths))
        return total

    def _limits(self, prompts: Prompts) -> NDArray[np.int32]:
        """Tokens each row may generate: what was asked for, within the cap and the model's positions."""
        wanted = np.full(prompts.shape.batch, self._rules.cap, np.int32)
        if prompts.limits is not None:
            wanted = np.minimum(wanted, prompts.limits)
        if self._rules.positions is not None:
            wanted = np.minimum(wanted, self._rules.positions - prompts.lengths)
        allowed: NDArray[np.int32] = np.maximum(wanted, 1)
        return allowed

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


def _look(state: DecodeState, index: int, step: int, started: float) -> Look:
    finish = state.finish.cpu().numpy()
    return Look(
        index=index,
        step=step,
        active=int((finish == Finish.ACTIVE).sum()),
        curve=tuple(state.active[: step + 1].tolist()),
        seconds=time.perf_counter() - started,
        tokens=state.output.cpu().numpy(),
        counts=state.counts.cpu().numpy(),
        finish=finish,
    )
