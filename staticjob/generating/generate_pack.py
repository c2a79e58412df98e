"""The chunks of a pack that generates: first the static batches of all, then all tails in one vLLM.

Weights are in memory once at a time: the static engine releases everything before vLLM starts, and where
the policy sends every row to vLLM it is not loaded at all.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from staticjob import __version__, tasks
from staticjob.encoding import load_tokenizer
from staticjob.engine.heap import release_freed_memory
from staticjob.engine.shape import Shape
from staticjob.errors import ConfigError
from staticjob.fallback import Vllm, worker_settings
from staticjob.generating.curve_history import Earlier
from staticjob.generating.decode_rates import StaticRates
from staticjob.generating.generate_chunk import GenerateChunk, Setting
from staticjob.generating.generate_rows import decoder_settings
from staticjob.generating.options import GenerateOptions, stop_ids
from staticjob.generating.survival import Observed
from staticjob.generating.tail_policy import Engine, TailPolicy
from staticjob.layout import Work
from staticjob.planning.device import cores, free_memory
from staticjob.policy import Scope
from staticjob.records import Chunk, Commit, Prepared
from staticjob.running.commit import Measured
from staticjob.running.progress import Reporter
from staticjob.running.watch import StopFlag
from staticjob.tasks.generate import options_of

if TYPE_CHECKING:
    from staticjob.engine.decode import StaticDecoder

log = logging.getLogger(__name__)

Dtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class Place:
    """Where the pack runs."""

    model_dir: Path
    device: str
    dtype: Dtype

    @property
    def lanes(self) -> int:
        return cores() if self.device == "cpu" else 1


def run_chunks(
    work: Work,
    prepared: Prepared,
    todo: Sequence[Chunk],
    place: Place,
    earlier: Earlier,
    stop: StopFlag,
    reporter: Reporter,
) -> Iterator[Commit]:
    """Bring every chunk of `todo` to its commit; yields commits as they are made.

    Raises Stopped when a stop was asked for, and whatever the engines or the store raise; what was
    flushed is kept for the next try.
    """
    config = prepared.config
    options = GenerateOptions.of(options_of(config))
    setting = Setting(
        work=work,
        files=prepared.files,
        options=options_of(config),
        asked=options,
        heads=tuple(tasks.module(config.task).fields(config, place.model_dir)),
        tokenizer=load_tokenizer(place.model_dir, config.model.trust_remote_code),
        stop_ids=stop_ids(place.model_dir, options),
        stop=stop,
        reporter=reporter,
    )
    reporter.by_rows(setting.options.n)
    with ExitStack() as shown:
        chunks = []
        for chunk in todo:
            chunks.append(GenerateChunk(setting, chunk))
            shown.enter_context(chunks[-1].standing.shown())
        yield from _Pack(prepared, place, earlier, setting, options, chunks).run()


def usable_engine(wanted: Engine, vllm_installed: bool) -> Engine:
    """The job's engine here: without vLLM, `auto` stays static; ConfigError where the job requires it."""
    if vllm_installed or wanted == "static":
        return wanted
    if wanted == "vllm":
        raise ConfigError("engine: vllm is not installed here; install it on the workers, or set auto")
    log.info("vLLM is not installed here: every row is finished by the static engine")
    return "static"


class _Pack:
    def __init__(
        self,
        prepared: Prepared,
        place: Place,
        earlier: Earlier,
        setting: Setting,
        options: GenerateOptions,
        chunks: Sequence[GenerateChunk],
    ) -> None:
        self._config, self._place, self._earlier = prepared.config, place, earlier
        self._setting, self._options, self._chunks = setting, options, chunks
        self._usable = usable_engine(prepared.config.engine, importlib.util.find_spec("vllm") is not None)
        self._seen = Observed(options.max_new_tokens)
        self._rates: dict[Shape, StaticRates] = {}
        self._samples = sum(chunk.rows_left for chunk in chunks)
        self._engine = Measured(
            ledger=chunks[0].standing.ledger,
            kept_batches=0,
            seconds=0,
            compute_seconds=0,
            start_seconds=0,
            peak_bytes=None,
            device=place.device,
            dtype=place.dtype,
            versions={"staticjob": __version__},
        )

    def run(self) -> Iterator[Commit]:
        self._static([chunk for chunk in self._chunks if chunk.decide(self._policy(chunk))])
        whole = [chunk for chunk in self._chunks if not chunk.tails]
        for chunk in whole:
            yield self._commit(chunk, None)
        ragged = [chunk for chunk in self._chunks if chunk.tails]
        if ragged:
            with self._vllm(ragged) as vllm:
                for chunk in ragged:
                    self._setting.stop.check()
                    chunk.run_tails(vllm)
                    yield self._commit(chunk, vllm)

    def _static(self, chunks: Sequence[GenerateChunk]) -> None:
        if not chunks:
            return
        decoder = self._load(chunks)
        for number, chunk in enumerate(chunks):
            self._setting.stop.check()
            if number:
                # What the pack's earlier chunks have shown counts from here on.
                chunk.decide(self._policy(chunk))
            chunk.run_static(decoder)
            seen = chunk.seen()
            self._seen.at_risk += seen.at_risk
            self._seen.ended += seen.ended
            rates = chunk.policy.static_rates()
            if rates:
                self._rates[Shape(chunk.chunk.length, chunk.chunk.batch)] = rates
        peak = decoder.peak_bytes()
        self._engine = replace(self._engine, peak_bytes=peak)
        del decoder
        _release(self._place.device)

    def _load(self, chunks: Sequence[GenerateChunk]) -> StaticDecoder:
        # Deferred: torch, which a pack that goes to vLLM whole does not need.
        from staticjob.engine.decode import StaticDecoder

        began = time.perf_counter()
        shapes = sorted({Shape(c.chunk.length, c.chunk.batch) for c in chunks}, reverse=True)
        sampling, ending = decoder_settings(self._options, self._setting.stop_ids)
        decoder = StaticDecoder(
            self._place.model_dir, self._config.model, shapes, self._options.max_new_tokens, sampling, ending
        )
        if self._place.device != "cpu":  # a CPU has no graph to capture, and a prefill there is no trifle
            for shape in shapes:
                decoder.warm_up(shape)
        seconds = time.perf_counter() - began
        versions = {"staticjob": __version__, **decoder.versions}
        self._engine = replace(self._engine, start_seconds=seconds, versions=versions)
        log.info("decoder on %s (%s) ready in %.1f s", decoder.device, decoder.dtype, seconds)
        return decoder

    def _policy(self, chunk: GenerateChunk) -> TailPolicy:
        due = any(other.tails for other in self._chunks)
        shape = Shape(chunk.chunk.length, chunk.chunk.batch)
        left = chunk.rows_left
        return TailPolicy(
            engine=self._usable,
            scope=Scope(
                prompt=shape.length,
                mean_prompt=chunk.mean_prompt,
                cap=self._options.max_new_tokens,
                rows_to_come=left,
                start_share=0.0 if due else left / max(1, self._samples),
            ),
            batch=shape.batch,
            lanes=self._place.lanes,
            device=self._place.device,
            earlier=self._seen.plus(self._earlier.seen(self._options.max_new_tokens)),
            static=self._earlier.static(shape, self._rates),
            vllm=self._earlier.vllm,
            least_gain=self._setting.options.handover.least_gain,
        )

    def _vllm(self, chunks: Sequence[GenerateChunk]) -> Vllm:
        tails = [tail for chunk in chunks for tail in chunk.tails]
        log.info("%d rows of %d chunks go to vLLM", len(tails), len(chunks))
        options = self._options
        settings = worker_settings(
            self._place.model_dir,
            self._place.dtype,
            self._place.device,
            [len(tail.prompt) + options.max_new_tokens for tail in tails],
            _free_memory(self._place.device),
            trust_remote_code=self._config.model.trust_remote_code,
            stop=options.stop,
            min_new_tokens=options.min_new_tokens,
        )
        return Vllm(settings)

    def _commit(self, chunk: GenerateChunk, vllm: Vllm | None) -> Commit:
        commit = chunk.commit(self._engine, vllm)
        # A start is charged to the first chunk.
        self._engine = replace(self._engine, start_seconds=0)
        self._setting.reporter.committed(commit)
        return commit


def _free_memory(device: str) -> int | None:
    if device == "cpu":
        return free_memory()
    import torch

    return torch.cuda.mem_get_info(device)[0]


def _release(device: str) -> None:
    """Give the static engine's memory back, to the device and to the machine."""
    gc.collect()
    if device == "cpu":
        release_freed_memory()
        return
    import torch

    torch.cuda.empty_cache()
