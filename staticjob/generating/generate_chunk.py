"""One chunk of bounded generation: resume, static batches, tails through vLLM, commit."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from staticjob.config.options import GenerateConfig
from staticjob.errors import InfrastructureError, StaticJobError
from staticjob.generating.decode_rates import StaticRates
from staticjob.generating.fallback import Vllm, VllmClock
from staticjob.generating.generate_rows import BatchDone, TextWriter
from staticjob.generating.outcome import BatchCurve, Curve, Outcome, VllmWork
from staticjob.generating.policy import Decision
from staticjob.generating.survival import Observed
from staticjob.generating.tail_policy import TailPolicy
from staticjob.generating.text_store import TextStore
from staticjob.generating.text_table import Texts, result_table
from staticjob.layout import Work
from staticjob.ledger import Ledger
from staticjob.machine.host_memory import peak_resident
from staticjob.records.commit import Commit
from staticjob.records.plan import Chunk
from staticjob.records.prepared import InputFile
from staticjob.running.commit import EngineFacts, Measured, committed, publish
from staticjob.running.progress import Reporter
from staticjob.running.standing import Standing
from staticjob.running.watch import StopFlag, Watchdog

if TYPE_CHECKING:
    from staticjob.engine.decode import StaticDecoder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setting:
    """What all chunks of a process share."""

    work: Work
    files: tuple[InputFile, ...]
    options: GenerateConfig
    heads: tuple[pa.Field, ...]
    writer: TextWriter
    stop: StopFlag
    reporter: Reporter


class GenerateChunk:
    """One try at one chunk; the methods are called in the order they stand here, within `standing.shown`."""

    def __init__(self, setting: Setting, chunk: Chunk) -> None:
        self._setting, self.chunk = setting, chunk
        self.standing = Standing(setting.work, chunk)
        self._store = TextStore(setting.work, chunk, setting.options.n)
        self._decisions: tuple[Decision, ...] = ()
        self._static_rates: StaticRates | None = None
        self._kept = 0  # batches
        self._compute_seconds = self._vllm_start = 0.0

    def resume(self) -> None:
        """Take up what earlier tries left."""
        store, samples = self._store, self._setting.options.n
        store.resume()
        self._kept = store.begun // samples
        if store.begun:
            log.info(
                "chunk %s: %d of %d batches kept from an earlier try, %d rows to hand over",
                self.chunk.id, store.begun, self.chunk.batches * samples, store.handed_over,
            )  # fmt: skip
        self.standing.ledger = self._slots(store.curves.values())
        self._count()
        self.standing.kept = self.standing.done
        self._setting.reporter.texts(store.done, 0, kept=True)

    @property
    def rows_left(self) -> int:
        """Samples of static batches that are not begun."""
        return self._store.rows_left

    @property
    def mean_prompt(self) -> float:
        return self.chunk.ledger.useful / max(1, self.chunk.rows)

    def run_static(self, decoder: StaticDecoder, policy: TailPolicy) -> None:
        """Run the batches that are not begun, as far as the policy runs them statically.

        Raises Stopped when a stop was asked for, after storing what is finished.
        """
        setting, began = self._setting, time.perf_counter()
        with Watchdog() as watchdog, closing(self._store.left()) as left:

            def looked() -> None:
                watchdog.alive()
                self._watch(policy)

            made = setting.writer.static(decoder, left, policy, looked, setting.stop.wanted)
            with closing(made):
                for done in made:
                    self._watch(policy)
                    self._take(done)
        self._watch(policy)
        self._compute_seconds += time.perf_counter() - began
        self._flush()
        setting.stop.check()

    def seen(self) -> Observed:
        """How long this chunk's samples lived in the static engine."""
        observed = Observed(self._setting.options.max_new_tokens)
        for curve in self._store.curves.values():
            observed.add_curve(curve.rows, (*curve.active, curve.left))
        return observed

    def decided(self, policy: TailPolicy) -> int:
        """Keep what the policy made of the chunk; returns how many samples are vLLM's: all not finished."""
        self._decisions, self._static_rates = tuple(policy.decisions), policy.static_rates()
        self.standing.tails = self._store.total - self._store.done
        return self.standing.tails

    def pause(self) -> None:
        """Other chunks run before `run_tails`: forget what it can read back."""
        self._store.forget()
        self.standing.write()

    def run_tails(self, vllm: Vllm) -> None:
        """Finish all tails in one call; what a stop or a failing vLLM leaves finished is stored first.

        Raises Stopped when a stop was asked for, InfrastructureError when vLLM fails for good.
        """
        setting, store = self._setting, self._store
        tails = store.tails()
        clock = VllmClock(vllm)
        try:
            for row in setting.writer.tails(tails, vllm, setting.stop.check):
                store.add([row])
                self.standing.tails_done += 1
                self.standing.rows_done = store.done // setting.options.n
                setting.reporter.texts(1, row.n_tokens)
                if store.flush_is_due:
                    self._flush(clock.lap())
        except StaticJobError:
            self._flush(clock.lap())
            raise
        self._flush(clock.lap())
        self._compute_seconds += clock.seconds
        self._vllm_start = clock.start_seconds

    def theirs(self) -> Commit | None:
        """The chunk's commit where another worker was faster."""
        commit = committed(self._setting.work, self.chunk)
        if commit:
            log.info("chunk %s: another worker committed first; its result counts", self.chunk.id)
            self.standing.finished()
        return commit

    def commit(self, engine: EngineFacts, vllm: Vllm | None) -> Commit:
        """Publish the texts; `engine` says where they were computed and what its start took."""
        setting, texts = self._setting, self._store.read()
        if len(texts.rows) < self._store.total:
            commit = self.theirs()  # which deletes what was flushed
            if commit is None:
                raise InfrastructureError(
                    f"chunk {self.chunk.id}: of {self._store.total} texts written only {len(texts.rows)} are "
                    "in the store; run the job again to compute the others"
                )
            return commit
        outcome = self._outcome(texts, vllm)
        measured = Measured(
            ledger=outcome.prompts + outcome.decode,
            kept_batches=self._kept,
            seconds=self.standing.seconds - self._vllm_start,
            compute_seconds=self._compute_seconds,
            engine=replace(
                engine,
                start_seconds=engine.start_seconds + self._vllm_start,
                peak_bytes=engine.peak_bytes or peak_resident(),
            ),
            generation=outcome,
        )
        records = self._store.records()
        table = result_table(records, self.chunk.length, texts.rows, setting.options, setting.heads)
        commit = publish(setting.work, setting.files, self.chunk, table, measured)
        self.standing.finished()
        return commit

    def _watch(self, policy: TailPolicy) -> None:
        """Bring the standing's active rows up to what the policy last saw."""
        self.standing.active_rows, self.standing.decoding_rows = policy.active

    def _take(self, done: BatchDone) -> None:
        """Keep what became of a batch."""
        curve = _curve(done)
        self._store.add(done.rows, done.tails, curve)
        self.standing.ledger += self._slots([curve])
        self._count()
        self._setting.reporter.texts(len(done.rows), sum(row.n_tokens for row in done.rows))
        if self._store.flush_is_due:
            self._flush()

    def _count(self) -> None:
        """Bring the standing up to what is known."""
        store, samples = self._store, self._setting.options.n
        self.standing.done = len(store.curves) // samples
        self.standing.rows_done = store.done // samples
        self.standing.tails = store.handed_over

    def _flush(self, vllm_seconds: float = 0.0) -> None:
        self._store.flush(vllm_seconds)
        self.standing.write()

    def _slots(self, curves: Iterable[BatchCurve]) -> Ledger:
        return sum((c.prompts + c.decode() for c in curves), Ledger())

    def _outcome(self, texts: Texts, vllm: Vllm | None) -> Outcome:
        curves, rows = list(texts.curves.values()), texts.rows.values()
        return Outcome(
            samples=self._setting.options.n,
            prompts=sum((c.prompts for c in curves), Ledger()),
            decode=sum((c.decode() for c in curves), Ledger()),
            curve=Curve.of(curves),
            vllm=VllmWork.of(rows, texts.vllm_seconds, self._vllm_start),
            finish=dict(Counter(row.finish for row in rows)),
            lengths=dict(sorted(Counter(row.n_tokens for row in rows).items())),
            decisions=self._decisions,
            static_rates=self._static_rates,
            vllm_rates=vllm.rates() if vllm else None,
        )


def _curve(done: BatchDone) -> BatchCurve:
    return BatchCurve(
        index=done.batch.index,
        sample=done.batch.keys[0].sample,
        rows=done.curve.rows,
        batch=done.batch.shape.batch,
        prompts=done.prompts,
        active=done.curve.active,
        left=done.curve.left,
        prefill_seconds=done.prefill_seconds,
        decode_seconds=done.decode_seconds,
    )
