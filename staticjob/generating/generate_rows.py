"""Prompts to texts: rectangles through the static decoder, what it hands over through vLLM, joined by row.

writer = TextWriter(tokenizer, options, stop_ids)
for done in writer.static(decoder, batches, policy): …   finished rows of a batch, and its tail
for text in writer.tails(tails, vllm): …                 after the decoder has released its memory
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from staticjob.config.options import GenerateConfig
from staticjob.engine.active_rows import ActiveRows
from staticjob.engine.decode_batch import Answer, Generated, Look, Prompts
from staticjob.engine.decode_state import Ending, Finish
from staticjob.engine.sampling import Sampling, stream_keys
from staticjob.generating.fallback import TailRequest, TailResult, Vllm
from staticjob.generating.stop_text import StopRule, StopWatch, row_text
from staticjob.generating.tail_policy import TailPolicy
from staticjob.generating.text_rows import NO_CHANCES, Chances, Ids, PromptBatch, RowKey, Tail, TextRow
from staticjob.ledger import Ledger

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from staticjob.engine.decode import StaticDecoder


@dataclass(frozen=True)
class BatchDone:
    """What became of one batch: rows that ended, and rows to hand over."""

    batch: PromptBatch
    rows: tuple[TextRow, ...]
    tails: tuple[Tail, ...]
    prompts: Ledger  # slots of its prefill
    curve: ActiveRows
    prefill_seconds: float
    decode_seconds: float


class TextWriter:
    """Runs rows in either engine and makes texts of what comes back; the same for all chunks of a job."""

    def __init__(self, tokenizer: Tokenizer, options: GenerateConfig, stop_ids: Sequence[int]) -> None:
        self._tokenizer, self._options = tokenizer, options
        self._stop_ids = frozenset(stop_ids)
        self._rule = StopRule(options.stop, options.min_new_tokens)

    def static(
        self,
        decoder: StaticDecoder,
        batches: Iterable[PromptBatch],
        policy: TailPolicy,
        alive: Callable[[], None] = lambda: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Generator[BatchDone]:
        """Batches in order, up to the first that the policy sends to vLLM; none after it is taken.

        `alive` sees every look. Once `stopping` says so none begins, and those under way end at their next
        look. One that this cuts is kept where vLLM is to start anyway; elsewhere it is to be run again,
        for a stop must not send rows to another engine.
        """
        taken: dict[int, PromptBatch] = {}
        watches: dict[int, StopWatch] = {}
        cut: set[int] = set()

        def begin() -> Iterator[Prompts]:
            for number, batch in enumerate(batches):
                if stopping() or not policy.begin(number, len(batch.keys)):
                    return
                taken[number] = batch
                if self._options.stop:
                    watches[number] = StopWatch(self._tokenizer, self._rule, len(batch.keys))
                yield batch.prompts(self._options.seed)

        def observe(look: Look) -> Answer:
            alive()
            watch = watches.get(look.index)
            ended = watch.ended(look) if watch else []
            curve = (*look.curve[:-1], look.active - len(ended))
            hand_over = policy.look(look.index, look.step, curve, look.seconds)
            if not hand_over and stopping():
                cut.add(look.index)
                hand_over = True
            return Answer(ended, hand_over)

        for number, result in enumerate(decoder.run(begin(), observe)):
            batch, curve = taken.pop(number), result.curve
            watches.pop(number, None)
            if number in cut and curve.left and not policy.vllm_due:
                continue
            policy.end(number, (*curve.active, curve.left))
            yield self._done(batch, result)

    def tails(
        self, tails: Sequence[Tail], vllm: Vllm, tick: Callable[[], None] = lambda: None
    ) -> Iterator[TextRow]:
        """One row per tail, as vLLM ends them."""
        requests = [self._request(number, tail) for number, tail in enumerate(tails)]
        for result in vllm.run(requests, tick):
            yield self._join(tails[result.id], result)

    def _done(self, batch: PromptBatch, result: Generated) -> BatchDone:
        rows, tails = [], []
        for row, key in enumerate(batch.keys):
            count = int(result.counts[row])
            tokens = result.tokens[row, :count]
            chances = NO_CHANCES if result.logprobs is None else result.logprobs[row, :count]
            if result.finish[row] == Finish.ACTIVE:
                tails.append(batch.tail(row, tokens, chances))
            else:
                finish = Finish(int(result.finish[row])).name.lower()
                rows.append(self._row(key, int(batch.lengths[row]), tokens, chances, finish, "static"))
        times = result.prefill_seconds, result.decode_seconds
        return BatchDone(batch, tuple(rows), tuple(tails), result.prompts, result.curve, *times)

    def _row(
        self,
        key: RowKey,
        n_prompt: int,
        tokens: Ids,
        logprobs: Chances,
        finish: str,
        engine: str,
        n_handed: int = 0,
        reason: str = "",
    ) -> TextRow:
        if finish == "error":
            reason = reason or "logits are not finite"
            return TextRow(key, n_prompt, 0, "", "error", engine, n_handed, reason=reason)
        stop_token = finish == "stop" and len(tokens) > 0 and int(tokens[-1]) in self._stop_ids
        text = row_text(self._tokenizer, tokens.tolist(), self._rule, stop_token)
        # What was generated between a stop string's end and the look that saw it does not count.
        count = text.tokens
        return TextRow(
            key,
            n_prompt,
            count,
            text.text,
            "stop" if text.stopped else finish,
            engine,
            n_handed,
            # Copies: a view would hold the whole batch.
            tokens[:count].copy() if self._options.token_ids else None,
            logprobs[:count].copy() if self._options.logprobs else None,
        )

    def _request(self, number: int, tail: Tail) -> TailRequest:
        options, done = self._options, len(tail.tokens)
        seed = int(stream_keys(options.seed, [tail.key.file], [tail.key.row], [tail.key.sample])[0])
        return TailRequest(
            id=number,
            tokens=(*tail.prompt.tolist(), *tail.tokens.tolist()),
            generated=done,
            max_new_tokens=options.max_new_tokens - done,
            min_new_tokens=max(0, options.min_new_tokens - done),
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            seed=(seed + done) % 2**63 if options.temperature else None,
            stop_ids=tuple(sorted(self._stop_ids)),
            logprobs=options.logprobs,
        )

    def _join(self, tail: Tail, result: TailResult) -> TextRow:
        return self._row(
            tail.key,
            len(tail.prompt),
            np.concatenate([tail.tokens, np.array(result.tokens, np.int32)]),
            np.concatenate([tail.logprobs, np.array(result.logprobs, np.float32)]),
            result.finish,
            "static+vllm" if len(tail.tokens) else "vllm",
            len(tail.tokens),
            result.reason,
        )


def decoder_settings(options: GenerateConfig, ids: Sequence[int]) -> tuple[Sampling, Ending]:
    """What the static decoder is built with."""
    return (
        Sampling(options.temperature, options.top_k, options.top_p),
        Ending(tuple(ids), options.min_new_tokens, options.logprobs),
    )
