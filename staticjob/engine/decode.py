"""Bounded generation in fixed rectangles: a batch's membership is fixed from admission to completion.

A GPU runs one batch at a time. A CPU runs one batch per core: two cores that share every product of
one batch wait for each other a thousand times a step, and small products leave one of them idle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from pathlib import Path
from queue import SimpleQueue

import torch

from staticjob.config.job import ModelConfig
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
from staticjob.machine.cores import cores
from staticjob.models.dimensions import Dimensions
from staticjob.models.model_files import max_positions, model_config

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
        count = lanes or (cores() if device.type == "cpu" else 1)
        sizes = Dimensions.of(config)
        self.lanes = [DecodeLane(causal, sizes, rules, shapes, device, dtype) for _ in range(count)]
        self._threads = Lanes(count) if device.type == "cpu" else None

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

        A batch is taken from `batches` when a lane is free for it. `observer` sees every look; it and
        `batches` are called from the lanes' threads, one call at a time. `look_steps` is how many steps
        lie between two looks.
        """
        if self._threads is None:
            for index, prompts in enumerate(batches):
                yield self.lanes[0].generate(prompts, observer, look_steps, index)
            return
        shift = _Shift(batches, observer, look_steps, len(self.lanes))
        workers = [self._threads.submit(shift.work, lane) for lane in self.lanes]
        try:
            yield from shift.results()
        finally:
            shift.end()
            wait(workers)


class _Shift:
    """Lanes at work on one stream of batches."""

    def __init__(
        self, batches: Iterable[Prompts], observer: Observer, look_steps: int | None, lanes: int
    ) -> None:
        self._batches = enumerate(batches)
        self._observer, self._look_steps, self._lanes = observer, look_steps, lanes
        self._one_at_a_time = threading.Lock()
        self._done = SimpleQueue[tuple[int, Generated] | BaseException | None]()
        # Results held back for their order: lanes wait when the consumer falls behind.
        self._room = threading.Semaphore(2 * lanes)
        self._ended = False

    def work(self, lane: DecodeLane) -> None:
        """Run batches on `lane` until there are none."""
        try:
            while True:
                self._room.acquire()
                with self._one_at_a_time:
                    item = None if self._ended else next(self._batches, None)
                if item is None:
                    self._done.put(None)
                    return
                index, prompts = item
                self._done.put((index, lane.generate(prompts, self._look, self._look_steps, index)))
        except BaseException as error:
            self._done.put(error)

    def results(self) -> Iterator[Generated]:
        """Results in the order of their batches; re-raises the first failure of a lane."""
        ready: dict[int, Generated] = {}
        working, expected = self._lanes, 0
        while working:
            done = self._done.get()
            if isinstance(done, BaseException):
                raise done
            if done is None:
                working -= 1
                continue
            ready[done[0]] = done[1]
            while expected in ready:
                yield ready.pop(expected)
                expected += 1
                self._room.release()

    def end(self) -> None:
        """Let every lane stop at its next look."""
        self._ended = True
        for _ in range(self._lanes):
            self._room.release()

    def _look(self, look: Look) -> Answer:
        with self._one_at_a_time:
            return Answer(hand_over=True) if self._ended else self._observer(look)
