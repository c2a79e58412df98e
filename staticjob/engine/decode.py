"""Bounded generation in fixed rectangles: a batch's membership is fixed from admission to completion.

A GPU runs one batch at a time. A CPU runs one batch per core: two cores that share every product of
one batch wait for each other a thousand times a step, and small products leave one of them idle.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

import torch

from staticjob.config import ModelConfig
from staticjob.engine import loader
from staticjob.engine.causal_model import load_causal
from staticjob.engine.decode_batch import Answer, Generated, Look, Prompts, carry_on
from staticjob.engine.decode_lane import DecodeLane, DecodeRules
from staticjob.engine.decode_state import Ending
from staticjob.engine.heap import keep_freed_memory
from staticjob.engine.lanes import Lanes
from staticjob.engine.sampling import Sampling
from staticjob.engine.shape import Shape
from staticjob.errors import ConfigError
from staticjob.models.model_files import max_positions, model_config
from staticjob.planning.dimensions import Dimensions

GREEDY = Sampling()
AT_THE_CAP = Ending()
Observer = Callable[[Look], Answer]


class StaticDecoder:
    """Loads a model once and generates in the given prompt shapes, and in no others.

    `shapes` are prompt rectangles (L, B); every row may grow by `cap` tokens. `lanes` batches run at
    once, each with a cache of its own (default: one per core on a CPU, one on a GPU). Raises ConfigError
    when the model cannot be loaded or run so, or a prompt is beyond its positions.
    """

    def __init__(
        self,
        model_dir: Path,
        model: ModelConfig,
        shapes: Sequence[Shape],
        cap: int,
        sampling: Sampling = GREEDY,
        ending: Ending = AT_THE_CAP,
        lanes: int | None = None,
    ) -> None:
        started = time.perf_counter()
        config = model_config(model_dir)
        positions = max_positions(config)
        longest = max(shape.length for shape in shapes)
        if positions is not None and longest > positions:
            raise ConfigError(
                f"model {model_dir}: a prompt of {longest} tokens is beyond its {positions} positions; "
                f"set limits.max_length to at most {positions}"
            )
        device = loader.resolve_device(model)
        dtype = loader.resolve_dtype(model, device)
        self.device, self.dtype = str(device), str(dtype).removeprefix("torch.")
        if device.type == "cpu":
            keep_freed_memory()
        causal = load_causal(model_dir, model, device, dtype, longest + cap)
        rules = DecodeRules(cap, sampling, ending, positions)
        count = lanes or (torch.get_num_threads() if device.type == "cpu" else 1)
        sizes = Dimensions.of(config)
        self.lanes = [DecodeLane(causal, sizes, rules, shapes, device, dtype) for _ in range(count)]
        self._threads = Lanes(count) if device.type == "cpu" else None
        self.start_seconds = time.perf_counter() - started

    @property
    def versions(self) -> dict[str, str]:
        import transformers

        return {"torch": torch.__version__, "transformers": transformers.__version__}

    @property
    def cache_bytes(self) -> int:
        """Bytes of all lanes' key-value caches: those predicted for the largest shape, per lane."""
        return sum(lane.cache.bytes for lane in self.lanes)

    def peak_bytes(self) -> int | None:
        """Most device memory held at once; None on CPU, where it is the process's own to tell."""
        return None if self.device == "cpu" else torch.cuda.max_memory_allocated(self.device)

    def warm_up(self, shape: Shape) -> None:
        """First run of a shape; see DecodeLane.warm_up."""
        for lane in self.lanes[:1] if self._threads else self.lanes:
            lane.warm_up(shape)

    def run(
        self, batches: Iterable[Prompts], observer: Observer = carry_on, look_steps: int | None = None
    ) -> Iterator[Generated]:
        """Run batches, as many at once as there are lanes; results in the order of `batches`.

        `observer` sees every look, one at a time; `look_steps` is how many steps apart they are.
        """
        if self._threads is None:
            for index, prompts in enumerate(batches):
                yield self.lanes[0].generate(prompts, observer, look_steps, index)
            return
        lock, free = threading.Lock(), SimpleQueue[DecodeLane]()
        for lane in self.lanes:
            free.put(lane)

        def one_at_a_time(look: Look) -> Answer:
            with lock:
                return observer(look)

        def work(index: int, prompts: Prompts) -> Generated:
            lane = free.get()
            try:
                return lane.generate(prompts, one_at_a_time, look_steps, index)
            finally:
                free.put(lane)

        pending: deque[Future[Generated]] = deque()
        for index, prompts in enumerate(batches):
            # One batch more than lanes waits, so that no lane does while results are taken.
            if len(pending) > len(self.lanes):
                yield pending.popleft().result()
            pending.append(self._threads.submit(work, index, prompts))
        while pending:
            yield pending.popleft().result()
