"""One chunk of bounded generation: resume, static batches, tails through vLLM, commit.

While the chunk is under way, `flush-<token>.arrow` objects hold finished samples and tails with the tokens
they have so far; whatever engine or process ends, none of them is computed again.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from staticjob import storage
from staticjob.config import GenerateConfig
from staticjob.engine.active_rows import ActiveRows
from staticjob.engine.shape import Shape
from staticjob.generating.generate_rows import BatchDone, ChunkRows, PromptBatch, RowKey, Tail, TextRow
from staticjob.generating.options import GenerateOptions
from staticjob.generating.outcome import BatchCurve, Curve, Outcome, VllmWork
from staticjob.generating.survival import Observed
from staticjob.generating.tail_policy import TailPolicy
from staticjob.generating.text_table import Texts, from_table, result_table, to_table
from staticjob.layout import Work
from staticjob.ledger import Ledger
from staticjob.planning.device import peak_resident
from staticjob.records import ROW_DTYPE, Chunk, Commit, InputFile
from staticjob.running import results
from staticjob.running.assemble import HostBatch
from staticjob.running.assemble import batches as read_batches
from staticjob.running.commit import FLUSH, Measured, publish
from staticjob.running.progress import Reporter
from staticjob.running.standing import Standing
from staticjob.running.watch import StopFlag, Watchdog

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from staticjob.engine.decode import StaticDecoder
    from staticjob.fallback import Vllm

log = logging.getLogger(__name__)

FLUSH_SECONDS = float(os.environ.get("STATICJOB_FLUSH_SECONDS", "30"))


@dataclass(frozen=True)
class Setting:
    """What all chunks of a process share."""

    work: Work
    files: tuple[InputFile, ...]
    options: GenerateConfig
    asked: GenerateOptions  # the same, as both engines read it
    heads: tuple[pa.Field, ...]
    tokenizer: Tokenizer
    stop_ids: tuple[int, ...]
    stop: StopFlag
    reporter: Reporter


class GenerateChunk:
    """One try at one chunk; the methods are called in the order they stand here."""

    def __init__(self, setting: Setting, chunk: Chunk) -> None:
        self._setting, self.chunk = setting, chunk
        self.standing = Standing(setting.work, chunk)
        self._texts = Texts()
        self._pending: tuple[list[TextRow], list[Tail], list[BatchCurve]] = [], [], []
        self._last_flush = time.monotonic()
        self._kept: set[tuple[int, int]] = set()
        self._rows: ChunkRows | None = None
        self._policy: TailPolicy | None = None
        self._vllm = VllmWork()
        self._compute_seconds = 0.0
        self._batches: list[HostBatch] = []
        self._resume()

    @property
    def tails(self) -> tuple[Tail, ...]:
        """Samples for vLLM, as far as they are known."""
        return tuple(self._texts.tails.values())

    @property
    def rows_left(self) -> int:
        """Samples of static batches that are not begun."""
        return sum(len(left.prompts.keys) for left in self._left())

    @property
    def policy(self) -> TailPolicy:
        """As `decide` took it."""
        assert self._policy is not None
        return self._policy

    @property
    def mean_prompt(self) -> float:
        return self.chunk.ledger.useful / max(1, self.chunk.rows)

    def decide(self, policy: TailPolicy) -> bool:
        """Take the chunk's policy; whether any batch is to run statically."""
        self._policy = policy
        setting = self._setting
        self._rows = ChunkRows(policy, setting.tokenizer, setting.asked, setting.stop_ids)
        if self.rows_left and not policy.sends_rest():
            return True
        self._hand_over(self._left())
        return False

    def run_static(self, decoder: StaticDecoder) -> None:
        """Run the batches that are not begun, as far as the policy runs them statically."""
        assert self._rows is not None
        began = time.perf_counter()
        left = self._left()
        with Watchdog() as watchdog:

            def alive() -> None:
                watchdog.alive()
                self._setting.stop.check()

            for done in self._rows.static(decoder, (b.prompts for b in left), alive):
                self._take_batch(left[done.index], done)
                self._flush_when_due()
        self._compute_seconds += time.perf_counter() - began
        self._flush()

    def run_tails(self, vllm: Vllm) -> None:
        """Finish all tails in one call."""
        assert self._rows is not None
        began = time.perf_counter()
        tails, before = self.tails, vllm.start_seconds
        for row in self._rows.tails(tails, vllm, self._setting.stop.check):
            self._texts.add([row], [], [])
            self._pending[0].append(row)
            self.standing.tails_done += 1
            self._setting.reporter.texts(1, len(row.tokens))
            self._flush_when_due()
        seconds = time.perf_counter() - began
        started = vllm.start_seconds - before
        whole = sum(not tail.tokens for tail in tails)
        self._vllm = VllmWork(
            tails=len(tails) - whole,
            rows=whole,
            prefilled=sum(len(tail.prompt) + len(tail.tokens) for tail in tails),
            again=sum(len(tail.prompt) + len(tail.tokens) - 1 for tail in tails if tail.tokens),
            generated=sum(len(self._texts.rows[t.key].tokens) - len(t.tokens) for t in tails),
            seconds=seconds - started,
            start_seconds=started,
        )
        self._compute_seconds += seconds - started
        self._flush()

    def seen(self) -> Observed:
        """How long this chunk's samples lived in the static engine."""
        observed = Observed(self._setting.options.max_new_tokens)
        for curve in self._texts.curves.values():
            observed.add_curve(curve.rows, (*curve.active, curve.left))
        return observed

    def commit(self, engine: Measured, vllm: Vllm | None) -> Commit:
        """Publish the texts; `engine` says where they were computed and what its start took."""
        outcome = self._outcome(vllm)
        measured = Measured(
            ledger=self.standing.ledger,
            kept_batches=len(self._kept) // self._setting.options.n,
            seconds=self._compute_seconds,
            compute_seconds=self._compute_seconds,
            start_seconds=engine.start_seconds + self._vllm.start_seconds,
            peak_bytes=engine.peak_bytes or peak_resident(),
            device=engine.device,
            dtype=engine.dtype,
            versions=engine.versions,
            generation=outcome,
        )
        setting = self._setting
        records = np.concatenate([batch.rows for batch in self._batches] or [np.empty(0, ROW_DTYPE)])
        table = result_table(records, self.chunk.length, self._texts.rows, setting.options, setting.heads)
        commit = publish(setting.work, setting.files, self.chunk, table, measured)
        self.standing.finished()
        return commit

    def _resume(self) -> None:
        """Read what earlier tries flushed; damaged objects are computed again."""
        chunk, work = self.chunk, self._setting.work
        for obj in storage.list_objects(work.chunk(chunk.id)):
            if not obj.uri.rpartition("/")[2].startswith(FLUSH):
                continue
            data = storage.find(obj.uri)
            try:
                if data is not None:
                    self._texts.add(*from_table(results.from_ipc(data)))
            except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError) as error:
                log.warning("%s: damaged (%s); its rows are computed again", obj.uri, error)
        self._batches = list(read_batches(work, chunk))
        # A batch that only vLLM has begun, or a damaged flush has holes in, goes on there row by row.
        self._kept = set(self._texts.curves)
        begun = [p for p in self._all() if (p.index, p.sample) not in self._kept and self._any(p)]
        self._hand_over(begun)
        self._kept |= {(p.index, p.sample) for p in begun}
        if self._kept:
            log.info(
                "chunk %s: %d of %d batches kept from an earlier try, %d rows to hand over",
                chunk.id, len(self._kept), chunk.batches * self._setting.options.n, len(self._texts.tails),
            )  # fmt: skip
        self._count()
        self._setting.reporter.texts(len(self._texts.rows), 0, kept=True)
        self.standing.kept = self.standing.done

    def _hand_over(self, batches: Sequence[_Batch]) -> None:
        """All samples of these batches that nobody has finished are tails from their prompt on."""
        whole = [
            Tail(key, each.prompts.prompt(row))
            for each in batches
            for row, key in enumerate(each.prompts.keys)
        ]
        self._texts.add([], whole, [])
        self.standing.tails = len(self._texts.tails)

    def _all(self) -> Iterator[_Batch]:
        shape = Shape(self.chunk.length, self.chunk.batch)
        for sample in range(self._setting.options.n):
            for batch in self._batches:
                keys = tuple(RowKey(int(r["file"]), int(r["row"]), sample) for r in batch.rows)
                yield _Batch(batch.index, sample, PromptBatch(keys, shape, batch.ids, batch.lengths))

    def _left(self) -> list[_Batch]:
        """Batches nothing is known of."""
        return [batch for batch in self._all() if not self._any(batch)]

    def _any(self, batch: _Batch) -> bool:
        return any(key in self._texts.rows or key in self._texts.tails for key in batch.prompts.keys)

    def _take_batch(self, batch: _Batch, done: BatchDone) -> None:
        """What became of a batch; of one that was not begun all rows are tails, and need no storing."""
        curves = [batch.curve(done, done.curve)] if done.curve else []
        self._texts.add(done.rows, done.tails, curves)
        if curves:
            rows, tails, known = self._pending
            rows += done.rows
            tails += done.tails
            known += curves
        self._count()
        self._setting.reporter.texts(len(done.rows), sum(len(row.tokens) for row in done.rows))

    def _count(self) -> None:
        """Bring the standing up to what is known."""
        curves = self._texts.curves.values()
        slots = [c.prompts(self.chunk.length) + c.decode() for c in curves]
        self.standing.ledger = sum(slots, Ledger())
        self.standing.done = len(curves) // self._setting.options.n
        self.standing.rows_done = len(self._texts.rows) // self._setting.options.n
        self.standing.tails = len(self._texts.tails)

    def _flush_when_due(self) -> None:
        if time.monotonic() - self._last_flush >= FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        """Store what is not stored yet."""
        if any(self._pending):
            uri = self._setting.work.chunk(self.chunk.id, f"{FLUSH}{uuid.uuid4().hex[:12]}.arrow")
            storage.put(uri, results.to_ipc(to_table(*self._pending)))
            self._pending = [], [], []
        self._last_flush = time.monotonic()
        self.standing.write()

    def _outcome(self, vllm: Vllm | None) -> Outcome:
        curves = list(self._texts.curves.values())
        rows = self._texts.rows.values()
        policy = self._policy
        return Outcome(
            samples=self._setting.options.n,
            prompts=sum((c.prompts(self.chunk.length) for c in curves), Ledger()),
            decode=sum((c.decode() for c in curves), Ledger()),
            curve=Curve.of(curves),
            vllm=self._vllm,
            finish=dict(Counter(row.finish for row in rows)),
            lengths=dict(sorted(Counter(len(row.tokens) for row in rows).items())),
            decisions=tuple(policy.decisions) if policy else (),
            static_rates=policy.static_rates() if policy else None,
            vllm_rates=vllm.rates() if vllm else None,
        )


@dataclass(frozen=True)
class _Batch:
    """One sample of one batch of the chunk."""

    index: int
    sample: int
    prompts: PromptBatch

    def curve(self, done: BatchDone, seen: ActiveRows) -> BatchCurve:
        return BatchCurve(
            index=self.index,
            sample=self.sample,
            rows=seen.rows,
            batch=self.prompts.shape.batch,
            prompt_tokens=int(self.prompts.lengths.sum()),
            active=seen.active,
            left=seen.left,
            prefill_seconds=done.prefill_seconds,
            decode_seconds=done.decode_seconds,
        )
