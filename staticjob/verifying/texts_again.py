"""Texts written again, in the same shapes beside other rows: the decoder as `verify` drives an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticjob.config.job import JobConfig
from staticjob.encoding.tokenizer import load_tokenizer
from staticjob.engine.decode import StaticDecoder
from staticjob.engine.heads import HeadResult
from staticjob.engine.shape import Shape
from staticjob.generating.generate_rows import TextWriter, decoder_settings
from staticjob.generating.policy import Scope
from staticjob.generating.stop_ids import stop_ids
from staticjob.generating.tail_policy import TailPolicy
from staticjob.generating.text_rows import PromptBatch, RowKey
from staticjob.tasks.generate import options_of
from staticjob.verifying.sample_batch import SampleBatch

# Compared columns: what was written, and why it ended.
COLUMNS = ("text", "finish_reason")


class TextsAgain:
    """Generates rows to their end, whatever the job's policy would do with them."""

    def __init__(self, model_dir: Path, job: JobConfig, shapes: Sequence[Shape]) -> None:
        self._options = options_of(job)
        ends = stop_ids(model_dir, self._options)
        tokenizer = load_tokenizer(model_dir, job.model.trust_remote_code)
        self._writer = TextWriter(tokenizer, self._options, ends)
        sampling, ending = decoder_settings(self._options, ends)
        cap = self._options.max_new_tokens
        # One lane: memory is planned for no more caches than the job's own, and this may run beside it.
        self._decoder = StaticDecoder(model_dir, job.model, shapes, cap, sampling, ending, lanes=1)
        self.columns = COLUMNS
        self.device, self.dtype = self._decoder.device, self._decoder.dtype

    def run(self, batch: SampleBatch) -> HeadResult:
        """Columns of objects [B]; with n samples a row's value is a list of n."""
        shape = batch.shape
        batches = [self._prompts(batch, sample) for sample in range(self._options.n)]
        cap = self._options.max_new_tokens
        policy = TailPolicy("static", Scope(shape.length, float(shape.length), cap, shape.batch), 1, 1, "cpu")
        done = self._writer.static(self._decoder, batches, policy)
        texts = {text.key: text for each in done for text in each.rows}
        columns: dict[str, NDArray[Any]] = {name: np.empty(shape.batch, object) for name in COLUMNS}
        for place, row in batch.placed.items():
            own = [texts[RowKey(row.file, row.row, sample)] for sample in range(self._options.n)]
            columns["text"][place] = self._value([text.text for text in own])
            columns["finish_reason"][place] = self._value([text.finish for text in own])
        return HeadResult(columns, np.ones(shape.batch, bool))

    def _value(self, values: list[str]) -> object:
        return values if self._options.n > 1 else values[0]

    def _prompts(self, batch: SampleBatch, sample: int) -> PromptBatch:
        """Dummy rows stand between the others here: each has a key, and its text is dropped."""
        placed = [batch.placed.get(place) for place in range(batch.shape.batch)]
        keys = tuple(
            RowKey(-1, place, sample) if row is None else RowKey(row.file, row.row, sample)
            for place, row in enumerate(placed)
        )
        return PromptBatch(keys, batch.shape, batch.ids, np.maximum(batch.lengths, 1).astype(np.int32))
