"""The chunks of a pack that generates: first the static batches of all, then all tails in one vLLM.

A chunk is committed as soon as no row of it is left; of one that has tails, only where they are stored is
kept until vLLM comes to it, so memory does not grow with the pack. Weights are in memory once at a time:
the static engine releases everything before vLLM starts, and where the policy sends every row to vLLM it
is not loaded at all.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from staticjob.encoding.tokenizer import load_tokenizer
from staticjob.engine.heap import release_freed_memory
from staticjob.engine.shape import Shape
from staticjob.errors import ConfigError
from staticjob.generating.curve_history import Earlier
from staticjob.generating.decode_rates import StaticRates
from staticjob.generating.fallback import ROWS_AT_ONCE, Vllm, worker_settings
from staticjob.generating.generate_chunk import GenerateChunk, Setting
from staticjob.generating.generate_rows import TextWriter, decoder_settings
from staticjob.generating.policy import Scope
from staticjob.generating.stop_ids import stop_ids
from staticjob.generating.survival import Observed
from staticjob.generating.tail_policy import Engine, TailPolicy
from staticjob.machine.cores import cores
from staticjob.machine.host_memory import free_memory
from staticjob.records.commit import Commit
from staticjob.records.plan import Chunk
from staticjob.running.commit import EngineFacts
from staticjob.running.pack_run import PackRun, Placement
from staticjob.tasks.generate import options_of
from staticjob.tasks.task_module import task_module

if TYPE_CHECKING:
    from staticjob.engine.decode import StaticDecoder

log = logging.getLogger(__name__)


def run_chunks(run: PackRun, place: Placement, earlier: Earlier) -> Iterator[Commit]:
    """Bring every chunk to its commit; yields commits as they are made.

    Raises Stopped when a stop was asked for, and whatever the engines or the store raise; what was
    flushed is kept for the next try.
    """
    yield from _Pack(run, place, earlier).commits()


def usable_engine(wanted: Engine, vllm_installed: bool) -> Engine:
    """The job's engine here: without vLLM, `auto` stays static; ConfigError where the job requires it."""
    if vllm_installed or wanted == "static":
        return wanted
    if wanted == "vllm":
        raise ConfigError("engine: vllm is not installed here; install it on the workers, or set auto")
    log.info("vLLM is not installed here: every row is finished by the static engine")
    return "static"


class _Pack:
    def __init__(self, run: PackRun, place: Placement, earlier: Earlier) -> None:
        config = run.prepared.config
        self._run, self._place, self._earlier, self._config = run, place, earlier, config
        self._options = options_of(config)
        self._ends = stop_ids(place.model_dir, self._options)
        tokenizer = load_tokenizer(place.model_dir, config.model.trust_remote_code)
        self._setting = Setting(
            work=run.work,
            files=run.prepared.files,
            options=self._options,
            heads=tuple(task_module(config.task).fields(config, place.model_dir)),
            writer=TextWriter(tokenizer, self._options, self._ends),
            stop=run.stop,
            reporter=run.reporter,
        )
        self._usable = usable_engine(config.engine, importlib.util.find_spec("vllm") is not None)
        self._decoder: StaticDecoder | None = None
        self._ragged: list[GenerateChunk] = []
        self._seen = Observed(self._options.max_new_tokens)
        self._before = earlier.seen(self._options.max_new_tokens)
        self._rates: dict[Shape, StaticRates] = {}
        # Imports and the model's files are part of a start, whichever engine follows.
        seconds = time.perf_counter() - run.began
        self._engine = EngineFacts(place.device, place.dtype, {}, start_seconds=seconds, peak_bytes=None)

    def commits(self) -> Iterator[Commit]:
        run = self._run
        run.reporter.by_rows(self._options.n)
        for number, planned in enumerate(run.todo):
            run.stop.check()
            chunk = GenerateChunk(self._setting, planned)
            commit = self._static(chunk, run.todo[number + 1 :])
            if commit:
                yield self._told(commit)
        self._release()
        if self._ragged:
            with self._vllm() as vllm:
                for chunk in self._ragged:
                    run.stop.check()
                    yield self._told(self._tails(chunk, vllm))

    def _static(self, chunk: GenerateChunk, later: Sequence[Chunk]) -> Commit | None:
        """The chunk's commit, or None where it waits for vLLM."""
        with chunk.standing.shown():
            chunk.resume()
            policy = self._policy(chunk, later)
            static = chunk.rows_left > 0 and not policy.sends_rest()
        decoder = self._loaded([chunk.chunk, *later]) if static else None
        with chunk.standing.shown():
            if decoder:
                chunk.run_static(decoder, policy)
                self._learn(chunk, policy)
            if not chunk.decided(policy):
                return chunk.commit(self._engine, None)
            chunk.pause()
        self._ragged.append(chunk)
        return None

    def _tails(self, chunk: GenerateChunk, vllm: Vllm) -> Commit:
        with chunk.standing.shown():
            commit = chunk.theirs()
            if commit:
                return commit
            chunk.run_tails(vllm)
            return chunk.commit(self._engine, vllm)

    def _loaded(self, chunks: Sequence[Chunk]) -> StaticDecoder:
        """The decoder, loaded at first for the shapes of all chunks that may need it."""
        # Deferred: torch, which a pack that goes to vLLM whole does not need.
        from staticjob.engine.decode import StaticDecoder

        if self._decoder:
            return self._decoder
        began = time.perf_counter()
        shapes = sorted({Shape(c.length, c.batch) for c in chunks}, reverse=True)
        sampling, ending = decoder_settings(self._options, self._ends)
        decoder = StaticDecoder(
            self._place.model_dir, self._config.model, shapes, self._options.max_new_tokens, sampling, ending
        )
        if self._place.device != "cpu":  # a CPU has no graph to capture, and a prefill there is no trifle
            for shape in shapes:
                decoder.warm_up(shape)
        seconds = time.perf_counter() - began
        self._engine = replace(
            self._engine, start_seconds=self._engine.start_seconds + seconds, versions=decoder.versions
        )
        log.info("decoder on %s (%s) ready in %.1f s", decoder.device, decoder.dtype, seconds)
        self._decoder = decoder
        return decoder

    def _learn(self, chunk: GenerateChunk, policy: TailPolicy) -> None:
        """What a chunk has shown counts for the pack's later ones."""
        seen, rates = chunk.seen(), policy.static_rates()
        self._seen.at_risk += seen.at_risk
        self._seen.ended += seen.ended
        if rates:
            self._rates[Shape(chunk.chunk.length, chunk.chunk.batch)] = rates
        if self._decoder:
            self._engine = replace(self._engine, peak_bytes=self._decoder.peak_bytes())

    def _policy(self, chunk: GenerateChunk, later: Sequence[Chunk]) -> TailPolicy:
        shape, left = Shape(chunk.chunk.length, chunk.chunk.batch), chunk.rows_left
        # vLLM's start is shared with the chunks that may have tails too: those from here on.
        sharing = left + sum(each.rows for each in later) * self._options.n
        return TailPolicy(
            engine=self._usable,
            scope=Scope(
                prompt=shape.length,
                mean_prompt=chunk.mean_prompt,
                cap=self._options.max_new_tokens,
                rows_to_come=left,
                start_share=0.0 if self._ragged or chunk.standing.tails else left / max(1, sharing),
            ),
            batch=shape.batch,
            lanes=cores() if self._place.device == "cpu" else 1,
            device=self._place.device,
            earlier=self._seen.plus(self._before),
            static=self._earlier.static(shape, self._rates),
            vllm=self._earlier.vllm,
            least_gain=self._options.handover.least_gain,
        )

    def _vllm(self) -> Vllm:
        tails = {chunk: chunk.standing.tails for chunk in self._ragged}
        log.info("%d rows of %d chunks go to vLLM", sum(tails.values()), len(tails))
        options = self._options
        # No prompt is longer than its rung; more rows than vLLM runs at once do not count.
        lengths = [
            chunk.chunk.length + options.max_new_tokens
            for chunk, rows in tails.items()
            for _ in range(min(rows, ROWS_AT_ONCE))
        ]
        settings = worker_settings(
            self._place.model_dir,
            self._place.dtype,
            self._place.device,
            lengths,
            _free_memory(self._place.device),
            trust_remote_code=self._config.model.trust_remote_code,
            stop=options.stop,
            min_new_tokens=options.min_new_tokens,
        )
        return Vllm(settings)

    def _told(self, commit: Commit) -> Commit:
        # A start is charged to the first chunk.
        self._engine = replace(self._engine, start_seconds=0)
        self._run.reporter.committed(commit)
        return commit

    def _release(self) -> None:
        """Give the static engine's memory back, to the device and to the machine."""
        if self._decoder is None:
            return
        self._decoder = None
        gc.collect()
        if self._place.device == "cpu":
            release_freed_memory()
            return
        import torch

        torch.cuda.empty_cache()


def _free_memory(device: str) -> int | None:
    if device == "cpu":
        return free_memory()
    import torch

    return torch.cuda.mem_get_info(device)[0]
