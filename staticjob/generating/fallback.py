"""Rows finished by vLLM's continuous batching: ragged tails, or whole rows from their prompt.

vLLM runs as a library in a process of its own. A watchdog ends it when it falls silent; a process that
hangs, crashes or runs out of memory is started again for the rows it still owed, so nothing that was
finished is computed twice. The process ends with whoever started it and leaves no descendant.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from staticjob.errors import InfrastructureError
from staticjob.generating.decode_rates import VllmRates, VllmStep, fit_rates
from staticjob.generating.vllm_process import VllmFailed, VllmProcess
from staticjob.generating.vllm_worker import WorkerSettings
from staticjob.memory import DTYPE_BYTES
from staticjob.models.dimensions import Dimensions
from staticjob.models.model_files import max_positions, model_config
from staticjob.running.watch import STALL_SECONDS

log = logging.getLogger(__name__)

START_SECONDS = 900.0  # to load and compile a large model on a cold machine
ATTEMPTS = 3
# vLLM's defaults: rows of one step, and slots of a cache block on a CPU (a GPU's are smaller).
ROWS_AT_ONCE = 256
BLOCK_SLOTS = 128
CACHE_SHARE = 0.5


@dataclass(frozen=True)
class TailRequest:
    """A row to finish: `tokens` are its prompt and the `generated` tokens it has so far."""

    id: int
    tokens: tuple[int, ...]
    max_new_tokens: int  # still to come, at most
    generated: int = 0
    min_new_tokens: int = 0  # still to come, at least
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    logprobs: bool = False


@dataclass(frozen=True)
class TailResult:
    """What a row got: new tokens (the one that ended it included) and why it ended."""

    id: int
    tokens: tuple[int, ...]
    finish: str  # stop, length or error
    logprobs: tuple[float, ...] = ()
    reason: str = ""


def worker_settings(
    model_dir: Path,
    dtype: Literal["float32", "float16", "bfloat16"],
    device: str,
    lengths: Sequence[int],
    free_bytes: int | None,
    *,
    trust_remote_code: bool = False,
    stop: tuple[str, ...] = (),
    min_new_tokens: int = 0,
) -> WorkerSettings:
    """Settings for rows of `lengths` tokens, prompt and text together, on a device with `free_bytes`.

    The cache holds as many rows as vLLM runs at once, and at most half of what is free.
    """
    config = model_config(model_dir)
    longest = max(lengths, default=1) + 1
    limit = min(longest, max_positions(config) or longest)
    blocks = sorted((-(-length // BLOCK_SLOTS) + 1 for length in lengths), reverse=True)[:ROWS_AT_ONCE]
    slots = max(sum(blocks), -(-limit // BLOCK_SLOTS) + 1) * BLOCK_SLOTS
    wanted = Dimensions.of(config).cache_bytes(1, slots, DTYPE_BYTES[dtype])
    room = wanted if free_bytes is None else int(free_bytes * CACHE_SHARE)
    return WorkerSettings(
        model_dir=str(model_dir),
        dtype=dtype,
        device=device,
        max_length=limit,
        cache_bytes=min(wanted, room),
        trust_remote_code=trust_remote_code,
        stop=stop,
        min_new_tokens=min_new_tokens,
    )


class Vllm:
    """vLLM in a process of its own, started at the first request; use as a context manager.

    Call it from the main thread: the process is tied to the life of the thread that starts it.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        stall_seconds: float = STALL_SECONDS,
        command: Sequence[str] = (sys.executable, "-m", "staticjob.generating.vllm_worker"),
    ) -> None:
        self._settings, self._stall, self._command = settings, stall_seconds, list(command)
        self._process: VllmProcess | None = None
        self._steps: list[VllmStep] = []
        self._starts = 0
        self.start_seconds = 0.0  # of all its starts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(
        self, requests: Sequence[TailRequest], tick: Callable[[], None] = lambda: None
    ) -> Iterator[TailResult]:
        """One result per request, as rows end; `tick` is called at every message and once a second at least.

        What `tick` raises ends the process and surfaces here.

        A request longer than the model allows is an error that vLLM never sees. Raises
        InfrastructureError when the process failed ATTEMPTS times; what was yielded stays valid.
        """
        owed: dict[int, TailRequest] = {}
        for request in requests:
            if len(request.tokens) >= self._settings.max_length:
                yield _too_long(request, self._settings.max_length)
            else:
                owed[request.id] = request
        for attempt in range(1, ATTEMPTS + 1):
            try:
                for result in self._attempt(list(owed.values()), tick):
                    del owed[result.id]
                    yield result
                return
            except VllmFailed as failure:
                self._end()
                if attempt == ATTEMPTS:
                    raise InfrastructureError(
                        f"vLLM failed {ATTEMPTS} times with {len(owed)} rows to go: {failure}"
                    ) from None
                log.warning("vLLM failed (%s); starting it again for %d rows", failure, len(owed))

    def rates(self) -> VllmRates | None:
        """Speed as measured over all steps so far; None before there are enough."""
        return fit_rates(self._steps, self.start_seconds / max(1, self._starts))

    def _attempt(self, requests: list[TailRequest], tick: Callable[[], None]) -> Iterator[TailResult]:
        if not requests:
            return
        if self._process is None:
            self._process = VllmProcess(self._command, self._settings)
            ready = self._process.receive(START_SECONDS, tick)
            self.start_seconds += float(ready["ready"])
            self._starts += 1
        self._process.send([asdict(request) for request in requests])
        while True:
            message = self._process.receive(self._stall, tick)
            if "done" in message:
                return
            if "step" in message:
                self._steps.append(VllmStep(**message["step"]))
            else:
                yield TailResult(
                    message["row"], tuple(message["tokens"]), message["finish"], tuple(message["logprobs"])
                )

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class VllmClock:
    """Seconds of one call of vLLM, its starts apart."""

    def __init__(self, vllm: Vllm) -> None:
        self._vllm, self._began, self._before = vllm, time.perf_counter(), vllm.start_seconds
        self._told = 0.0

    @property
    def start_seconds(self) -> float:
        return self._vllm.start_seconds - self._before

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began - self.start_seconds

    def lap(self) -> float:
        """Seconds since the last lap."""
        before, self._told = self._told, self.seconds
        return self._told - before


def _too_long(request: TailRequest, limit: int) -> TailResult:
    reason = f"{len(request.tokens)} tokens leave no room for a new one within {limit}"
    return TailResult(request.id, (), "error", reason=reason)
