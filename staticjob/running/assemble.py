"""Rectangles from spans: the batches of a chunk, assembled ahead of the engine.

A batch's membership follows from the plan alone (rows `i * batch` to `(i + 1) * batch` of the
chunk's spans), so a batch is the same whoever runs it and wherever a chunk is resumed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from staticjob.layout import Work
from staticjob.records.plan import Chunk
from staticjob.records.tokens import ROW_DTYPE
from staticjob.running.parts import RowBlock, read_spans

# Rectangles kept ready; two hide the store's latency behind the engine without holding much.
READY = 2


@dataclass(frozen=True)
class HostBatch:
    """One rectangle in host memory; rows beyond `len(rows)` are dummies of length 0."""

    index: int
    rows: NDArray[np.void]  # ROW_DTYPE, [n] with n <= B
    ids: NDArray[np.int32]  # [B, L], 0 beyond a row's length
    lengths: NDArray[np.int32]  # [B]
    boundaries: NDArray[np.int32]  # [B], -1 where a row has one segment


def fill(index: int, rows: NDArray[np.void], ids: NDArray[np.int32], length: int, batch: int) -> HostBatch:
    """Lay rows [n] with their ids (end to end) into a rectangle [batch, length]."""
    n = len(rows)
    lengths = np.zeros(batch, np.int32)
    lengths[:n] = rows["length"]
    boundaries = np.full(batch, -1, np.int32)
    boundaries[:n] = rows["boundary"]
    rectangle = np.zeros((batch, length), np.int32)
    # Row-major order of the mask is the order of the ids laid end to end.
    rectangle[np.arange(length) < lengths[:, None]] = ids
    return HostBatch(index, rows, rectangle, lengths, boundaries)


def batches(work: Work, chunk: Chunk, first: int = 0) -> Iterator[HostBatch]:
    """The chunk's batches from number `first` on, in the plan's order."""
    rows = np.empty(0, ROW_DTYPE)
    ids = np.empty(0, np.int32)
    index = first
    for block in read_spans(work, chunk.spans, skip_rows=first * chunk.batch):
        rows, ids = _append(rows, ids, block)
        while len(rows) >= chunk.batch:
            n_ids = int(rows["length"][: chunk.batch].sum())
            yield fill(index, rows[: chunk.batch], ids[:n_ids], chunk.length, chunk.batch)
            rows, ids = rows[chunk.batch :], ids[n_ids:]
            index += 1
    if len(rows):
        yield fill(index, rows, ids, chunk.length, chunk.batch)


def _append(
    rows: NDArray[np.void], ids: NDArray[np.int32], block: RowBlock
) -> tuple[NDArray[np.void], NDArray[np.int32]]:
    if not len(rows):
        return block.rows, block.ids
    return np.concatenate([rows, block.rows]), np.concatenate([ids, block.ids])


def prefetched(source: Iterator[HostBatch]) -> Iterator[HostBatch]:
    """Run `source` in a thread, READY rectangles ahead; its exception surfaces here.

    Leaving the iteration early stops the thread at its next rectangle.
    """
    ready: queue.Queue[HostBatch | BaseException | None] = queue.Queue(READY)
    stopped = threading.Event()

    def put(item: HostBatch | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for item in source:
                if not put(item):
                    return
            put(None)
        except BaseException as error:  # handed to the consumer, which raises it
            put(error)

    thread = threading.Thread(target=produce, name="assemble", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
