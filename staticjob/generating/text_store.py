"""A chunk's samples while it is under way: which of them are known, and the objects that hold them.

`flush-<token>.arrow` objects hold finished samples, and tails with the tokens they have so far; whatever
engine or process ends, none of them is computed again. In memory are the curves and what is not stored
yet: the rest is read back where it is needed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Generator, Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from staticjob import storage
from staticjob.engine.shape import Shape
from staticjob.generating.outcome import BatchCurve
from staticjob.generating.text_rows import PromptBatch, RowKey, Tail, TextRow
from staticjob.generating.text_table import Texts, from_table, to_table
from staticjob.layout import Work
from staticjob.records.plan import Chunk
from staticjob.records.tokens import ROW_DTYPE
from staticjob.running import results
from staticjob.running.assemble import HostBatch, batches, prefetched
from staticjob.running.commit import FLUSH, FLUSH_SECONDS
from staticjob.running.parts import read_rows

log = logging.getLogger(__name__)


class TextStore:
    """What is known of a chunk whose rows have `samples` samples each; `resume` comes first."""

    def __init__(self, work: Work, chunk: Chunk, samples: int) -> None:
        self._work, self._chunk, self._samples = work, chunk, samples
        self.curves: dict[tuple[int, int], BatchCurve] = {}  # by batch and sample
        self.done = 0  # samples finished
        self._begun: set[tuple[int, int]] = set()
        self._begun_rows = 0
        self._pending = Texts()
        self._damaged: set[str] = set()
        self._last_flush = time.monotonic()

    @property
    def total(self) -> int:
        """Samples of the chunk."""
        return self._chunk.rows * self._samples

    @property
    def begun(self) -> int:
        """Batches that ran statically, or of which only vLLM has begun any row; each counts per sample."""
        return len(self._begun)

    @property
    def handed_over(self) -> int:
        """Samples of these that vLLM is to finish."""
        return self._begun_rows - self.done

    @property
    def rows_left(self) -> int:
        """Samples of the batches that are not begun."""
        return self.total - self._begun_rows

    def resume(self) -> None:
        """Take up what earlier tries flushed; damaged objects are computed again.

        A batch that only vLLM has begun, or a damaged flush has holes in, goes on there row by row.
        """
        known = self.read()
        self.curves, self.done = known.curves, len(known.rows)
        for index, sample in known.curves:
            self._begin(index, sample)
        if not known:
            return
        for number, key in enumerate(self._keys()):
            if key in known.rows or key in known.tails:
                self._begin(number // self._samples // self._chunk.batch, key.sample)

    def left(self) -> Generator[PromptBatch]:
        """Batches nothing is known of, longest first, each once per sample."""
        every = range(self._samples)
        first = next(
            (i for i in range(self._chunk.batches) if any((i, s) not in self._begun for s in every)),
            self._chunk.batches,
        )
        for batch in prefetched(batches(self._work, self._chunk, first)):
            for sample in every:
                if (batch.index, sample) not in self._begun:
                    yield self._prompts(batch, sample)

    def add(
        self, rows: Iterable[TextRow], tails: Iterable[Tail] = (), curve: BatchCurve | None = None
    ) -> None:
        """What became of a batch, or of a tail."""
        before = len(self._pending.rows)
        self._pending.add(rows, tails, [curve] if curve else [])
        self.done += len(self._pending.rows) - before
        if curve:
            self.curves[curve.index, curve.sample] = curve
            self._begin(curve.index, curve.sample)

    @property
    def flush_is_due(self) -> bool:
        return time.monotonic() - self._last_flush >= FLUSH_SECONDS

    def flush(self, vllm_seconds: float = 0.0) -> None:
        """Store what is not stored yet, for which vLLM took `vllm_seconds`, and forget it."""
        if self._pending:
            self._pending.vllm_seconds = vllm_seconds
            uri = self._work.chunk(self._chunk.id, f"{FLUSH}{uuid.uuid4().hex[:12]}.arrow")
            storage.put(uri, results.to_ipc(to_table(self._pending)))
            self._pending = Texts()
        self._last_flush = time.monotonic()

    def read(self) -> Texts:
        """All that is stored. Where another worker has committed the chunk, that may be nothing."""
        texts = Texts()
        for obj in storage.list_objects(self._work.chunk(self._chunk.id)):
            if not obj.uri.rpartition("/")[2].startswith(FLUSH) or obj.uri in self._damaged:
                continue
            data = storage.find(obj.uri)
            try:
                if data is not None:
                    texts.join(from_table(results.from_ipc(data)))
            except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError) as error:
                log.warning("%s: damaged (%s); its rows are computed again", obj.uri, error)
                self._damaged.add(obj.uri)
        return texts

    def forget(self) -> None:
        """Keep no more than how many samples are finished; only what is read back is asked for from here."""
        self.curves.clear()
        self._begun.clear()

    def records(self) -> NDArray[np.void]:
        """The chunk's rows (`ROW_DTYPE`, [n])."""
        spans = [read_rows(self._work, span) for span in self._chunk.spans]
        return np.concatenate(spans or [np.empty(0, ROW_DTYPE)])

    def tails(self) -> list[Tail]:
        """All samples that nobody has finished, with what was generated of them."""
        known = self.read()
        self.done = len(known.rows)
        tails = list(known.tails.values())
        if self.done + len(tails) < self.total:
            for batch in batches(self._work, self._chunk):
                for sample in range(self._samples):
                    prompts = self._prompts(batch, sample)
                    tails += [
                        prompts.tail(row)
                        for row, key in enumerate(prompts.keys)
                        if key not in known.rows and key not in known.tails
                    ]
        return tails

    def _keys(self) -> Iterator[RowKey]:
        """All samples, those of a row one after another."""
        for record in self.records():
            for sample in range(self._samples):
                yield RowKey(int(record["file"]), int(record["row"]), sample)

    def _begin(self, index: int, sample: int) -> None:
        if (index, sample) not in self._begun:
            self._begun.add((index, sample))
            self._begun_rows += min(self._chunk.batch, self._chunk.rows - index * self._chunk.batch)

    def _prompts(self, batch: HostBatch, sample: int) -> PromptBatch:
        keys = tuple(RowKey(int(r["file"]), int(r["row"]), sample) for r in batch.rows)
        shape = Shape(self._chunk.length, self._chunk.batch)
        return PromptBatch(keys, shape, batch.ids, batch.lengths, index=batch.index)
