"""One chunk's rows to texts: static batches first, what they hand over through vLLM, joined by row.

rows = ChunkRows(decoder, policy, tokenizer, options, stop_ids)
for done in rows.static(batches): …     finished rows of a batch, and its tail
for text in rows.tails(tails, vllm): …  after the decoder has released its memory
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from staticjob.engine.active_rows import ActiveRows
from staticjob.engine.decode_batch import Answer, Generated, Look, Prompts
from staticjob.engine.decode_state import Ending, Finish
from staticjob.engine.sampling import Sampling, stream_keys
from staticjob.engine.shape import Shape
from staticjob.fallback import TailRequest, TailResult, Vllm
from staticjob.generating.options import GenerateOptions
from staticjob.generating.stop_text import StopRule, StopWatch, row_text
from staticjob.generating.tail_policy import TailPolicy

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from staticjob.engine.decode import StaticDecoder


@dataclass(frozen=True)
class RowKey:
    """Which row, and which of its samples."""

    file: int
    row: int
    sample: int = 0


@dataclass(frozen=True)
class TextRow:
    """One answered row. `finish` is stop, length or error; an error has a reason and no text."""

    key: RowKey
    n_prompt: int
    tokens: tuple[int, ...]
    text: str
    finish: str
    engine: str  # static, vllm or static+vllm
    logprobs: tuple[float, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Tail:
    """A row that vLLM is to finish: its prompt and what the static engine generated of it, if anything."""

    key: RowKey
    prompt: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    limit: int | None = None  # tokens it may have in all; None: the job's


@dataclass(frozen=True)
class PromptBatch:
    """Prompts of one rectangle: keys [n] with n <= B, ids [B, L], lengths [B], 0 for a dummy row.

    `limits` [B] are the tokens each row may generate where that is fewer than the job allows.
    """

    keys: tuple[RowKey, ...]
    shape: Shape
    ids: NDArray[np.int32]
    lengths: NDArray[np.int32]
    limits: NDArray[np.int32] | None = None

    def prompt(self, row: int) -> tuple[int, ...]:
        return tuple(self.ids[row, : self.lengths[row]].tolist())

    def prompts(self, seed: int = 0) -> Prompts:
        """As the decoder takes them, each row with its random stream."""
        keys = np.zeros(self.shape.batch, np.int64)
        files, rows, samples = zip(*((k.file, k.row, k.sample) for k in self.keys), strict=True)
        keys[: len(self.keys)] = stream_keys(seed, files, rows, samples)
        return Prompts(self.shape, self.ids, self.lengths, keys, self.limits)

    def limit(self, row: int) -> int | None:
        return None if self.limits is None else int(self.limits[row])


@dataclass(frozen=True)
class BatchDone:
    """What became of one batch: rows that ended, rows to hand over, and the curve where it was run."""

    index: int
    rows: tuple[TextRow, ...]
    tails: tuple[Tail, ...]
    curve: ActiveRows | None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


class ChunkRows:
    """Runs the batches of one chunk and watches them: stop strings, and the policy's decisions."""

    def __init__(
        self, policy: TailPolicy, tokenizer: Tokenizer, options: GenerateOptions, stop_ids: Sequence[int]
    ) -> None:
        self._policy, self._tokenizer, self._options = policy, tokenizer, options
        self._stop_ids = frozenset(stop_ids)
        self._rule = StopRule(options.stop, options.min_new_tokens)
        self._watches: dict[int, StopWatch] = {}
        self._taken: dict[int, PromptBatch] = {}

    def static(
        self, decoder: StaticDecoder, batches: Iterable[PromptBatch], alive: Callable[[], None] = lambda: None
    ) -> Iterator[BatchDone]:
        """Batches in order; those that are not begun come last, whole, as tails. `alive` sees every look."""
        unbegun: list[tuple[int, PromptBatch]] = []

        def observe(look: Look) -> Answer:
            alive()
            watch = self._watches.get(look.index)
            ended = watch.ended(look) if watch else []
            curve = (*look.curve[:-1], look.active - len(ended))
            hand_over = self._policy.look(look.index, look.step, curve, look.seconds)
            return Answer(ended, hand_over)

        stream = self._begin(enumerate(batches), unbegun)
        for index, result in enumerate(decoder.run(stream, observe)):
            yield self._done(index, self._taken.pop(index), result)
        for index, batch in unbegun:
            tails = tuple(
                Tail(key, batch.prompt(row), limit=batch.limit(row)) for row, key in enumerate(batch.keys)
            )
            yield BatchDone(index, (), tails, None)

    def tails(
        self, tails: Sequence[Tail], vllm: Vllm, tick: Callable[[], None] = lambda: None
    ) -> Iterator[TextRow]:
        """One row per tail, as vLLM ends them."""
        requests = [self._request(number, tail) for number, tail in enumerate(tails)]
        for result in vllm.run(requests, tick):
            yield self._join(tails[result.id], result)

    def _begin(
        self, batches: Iterator[tuple[int, PromptBatch]], unbegun: list[tuple[int, PromptBatch]]
    ) -> Iterator[Prompts]:
        for index, batch in batches:
            if unbegun or not self._policy.begin(index, len(batch.keys)):
                unbegun.append((index, batch))
                continue
            self._taken[index] = batch
            if self._options.stop:
                self._watches[index] = StopWatch(self._tokenizer, self._rule, len(batch.keys))
            yield batch.prompts(self._options.seed)

    def _done(self, index: int, batch: PromptBatch, result: Generated) -> BatchDone:
        self._watches.pop(index, None)
        rows, tails = [], []
        for row, key in enumerate(batch.keys):
            count = int(result.counts[row])
            tokens = tuple(result.tokens[row, :count].tolist())
            chances = () if result.logprobs is None else tuple(result.logprobs[row, :count].tolist())
            if result.finish[row] == Finish.ACTIVE:
                tails.append(Tail(key, batch.prompt(row), tokens, chances, batch.limit(row)))
            else:
                finish = Finish(int(result.finish[row])).name.lower()
                rows.append(self._row(key, int(batch.lengths[row]), tokens, chances, finish, "static"))
        curve = result.curve
        self._policy.end(index, (*curve.active, curve.left))
        times = result.prefill_seconds, result.decode_seconds
        return BatchDone(index, tuple(rows), tuple(tails), curve, *times)

    def _row(
        self,
        key: RowKey,
        n_prompt: int,
        tokens: tuple[int, ...],
        logprobs: tuple[float, ...],
        finish: str,
        engine: str,
        reason: str = "",
    ) -> TextRow:
        if finish == "error":
            reason = reason or "logits are not finite"
            return TextRow(key, n_prompt, (), "", "error", engine, (), reason)
        stop_token = finish == "stop" and bool(tokens) and tokens[-1] in self._stop_ids
        text = row_text(self._tokenizer, tokens, self._rule, stop_token)
        # What was generated between a stop string's end and the look that saw it does not count.
        kept = slice(text.tokens)
        finish = "stop" if text.stopped else finish
        return TextRow(key, n_prompt, tokens[kept], text.text, finish, engine, logprobs[kept])

    def _request(self, number: int, tail: Tail) -> TailRequest:
        options, done = self._options, len(tail.tokens)
        seed = int(stream_keys(options.seed, [tail.key.file], [tail.key.row], [tail.key.sample])[0])
        return TailRequest(
            id=number,
            tokens=(*tail.prompt, *tail.tokens),
            generated=done,
            max_new_tokens=min(options.max_new_tokens, tail.limit or options.max_new_tokens) - done,
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
            (*tail.tokens, *result.tokens),
            (*tail.logprobs, *result.logprobs),
            result.finish,
            "static+vllm" if tail.tokens else "vllm",
            result.reason,
        )


def decoder_settings(options: GenerateOptions, ids: Sequence[int]) -> tuple[Sampling, Ending]:
    """What the static decoder is built with."""
    return (
        Sampling(options.temperature, options.top_k, options.top_p),
        Ending(tuple(ids), options.min_new_tokens, options.logprobs),
    )
