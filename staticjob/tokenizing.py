"""Splits to sorted parts: rows stream through the task's encoder; those no model has to see are answered."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from staticjob import dataset, storage
from staticjob.encoding.outcome import Encoded
from staticjob.layout import Work
from staticjob.records.prepared import FileSlice, InputFile, Prepared, Split
from staticjob.records.status import FIRST_ERRORS, RowError, Status
from staticjob.records.tokens import ID_DTYPE, ITEMS_DTYPE, NO_LIST, ROW_DTYPE, SliceStats, SplitStats
from staticjob.running import results
from staticjob.running.parts import PartWriter
from staticjob.tasks.roles import STRUCTURED
from staticjob.tasks.task_module import RowEncoder

ARRIVAL_BATCH = 32


def tokenize_split(work: Work, prepared: Prepared, split: Split, encoder: RowEncoder) -> SplitStats:
    """Tokenize one split into sorted parts and the list of answered rows; write its marker last.

    Raises DataError for a missing column or an unreadable object (nothing is published then).
    """
    started = time.perf_counter()
    state = _SplitState(PartWriter(work, split.id))
    for piece in split.slices:
        state.slices.append(_tokenize_slice(prepared, piece, encoder, state))
    state.parts.flush()
    state.close_arrival()
    storage.put(work.answered(split.id), results.to_ipc(state.answered_table()))
    if prepared.config.lists:
        storage.put(work.items(split.id), np.concatenate([*state.items, np.empty(0, ITEMS_DTYPE)]).tobytes())
    stats = SplitStats(
        split=split.id,
        parts=tuple(state.parts.parts),
        slices=tuple(state.slices),
        statuses=dict(state.statuses),
        arrival_slots=state.arrival_slots,
        first_errors=tuple(state.first_errors),
        seconds=time.perf_counter() - started,
    )
    storage.put_json(work.split(split.id), stats)
    return stats


@dataclass
class _SplitState:
    """What grows while a split is read."""

    parts: PartWriter
    slices: list[SliceStats] = field(default_factory=list)
    statuses: Counter[Status] = field(default_factory=Counter)
    first_errors: list[RowError] = field(default_factory=list)
    answered: list[pa.Table] = field(default_factory=list)
    items: list[NDArray[np.int32]] = field(default_factory=list)
    arrival_slots: int = 0
    _waiting: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    def count_arrival(self, lengths: NDArray[np.int32]) -> None:
        """Account for runnable rows in the order they arrive, ARRIVAL_BATCH at a time."""
        lengths = np.concatenate([self._waiting, lengths])
        whole = len(lengths) // ARRIVAL_BATCH * ARRIVAL_BATCH
        longest = lengths[:whole].reshape(-1, ARRIVAL_BATCH).max(axis=1)
        self.arrival_slots += int(longest.sum()) * ARRIVAL_BATCH
        self._waiting = lengths[whole:]

    def close_arrival(self) -> None:
        if len(self._waiting):
            self.arrival_slots += int(self._waiting.max()) * len(self._waiting)
            self._waiting = self._waiting[:0]

    def answer(self, rows: list[tuple[int, int, int, str, str]]) -> None:
        """Keep the outcome of rows (file, row, item, status, reason) that no model has to see."""
        if not rows:
            return
        columns = [*zip(*rows, strict=True), (0,) * len(rows)]
        schema = results.ANSWERED_SCHEMA
        self.answered.append(pa.table(dict(zip(schema.names, columns, strict=True)), schema))

    def answered_table(self) -> pa.Table:
        return pa.concat_tables([results.ANSWERED_SCHEMA.empty_table(), *self.answered])


def _tokenize_slice(
    prepared: Prepared, piece: FileSlice, encoder: RowEncoder, state: _SplitState
) -> SliceStats:
    config = prepared.config
    file = prepared.files[piece.file]
    roles = config.input.columns
    texts = [column for role, column in roles.items() if role not in STRUCTURED]
    schemas: list[pa.Schema] = []
    rows = items = 0
    columns = (
        None if config.input.keep == "all" else list(dict.fromkeys([*roles.values(), *config.input.keep]))
    )
    for batch in dataset.read_slice(file, piece, columns, text=texts):
        kept = batch.table.schema.names if config.input.keep == "all" else config.input.keep
        schemas.append(pa.schema([batch.table.schema.field(name) for name in kept]))
        errors = dict(batch.errors)
        values: dict[str, list[Any]] = {}
        for role, column in roles.items():
            if role in STRUCTURED:
                values[role], problems = dataset.structured_values(batch.table[column])
                errors.update(
                    {batch.first_row + row: f"column {column!r} {why}" for row, why in problems.items()}
                )
            else:
                values[role] = dataset.text_values(batch.table[column], file.path)
        outcomes = encoder.encode(values)
        for row, reason in errors.items():
            outcomes[row - batch.first_row] = Encoded((), Status.ERROR, reason)
        if config.lists:
            counts = [NO_LIST if o.items is None else len(o.items) for o in outcomes]
            state.items.append(np.array(counts, ITEMS_DTYPE))
        items += _record(file, batch, outcomes, state)
        rows += batch.rows
    return SliceStats(
        file=piece.file,
        first_row=piece.first_row,
        rows=rows,
        items=items,
        kept_schema=dataset.encode_schema(dataset.unify(schemas)),
    )


def _record(file: InputFile, batch: dataset.RowBatch, outcomes: list[Encoded], state: _SplitState) -> int:
    """Send what is runnable to the part, the others to the answered rows; returns how many items it was."""
    items = [
        (batch.first_row + i, number, item)
        for i, outcome in enumerate(outcomes)
        for number, item in enumerate(outcome.items or (outcome,))
    ]
    runnable = [(row, number, o) for row, number, o in items if o.ids]
    records = np.zeros(len(runnable), dtype=ROW_DTYPE)
    records["file"] = file.index
    records["row"] = [row for row, _, _ in runnable]
    records["item"] = [number for _, number, _ in runnable]
    records["length"] = [len(o.ids) for _, _, o in runnable]
    records["truncated"] = [o.status is Status.TRUNCATED for _, _, o in runnable]
    records["boundary"] = [o.boundary for _, _, o in runnable]
    ids = np.fromiter(
        chain.from_iterable(o.ids for _, _, o in runnable), ID_DTYPE, int(records["length"].sum())
    )
    state.parts.add(records, ids)
    state.count_arrival(records["length"])
    state.statuses.update(o.status for _, _, o in items)
    others = [(row, number, o) for row, number, o in items if not o.ids]
    answered = []
    # People look a row in error up in the input; its line is what an editor shows.
    lines = {row: batch.line_of(row) for row, _, o in others if o.status is Status.ERROR}
    for row, number, o in others:
        reason = f"line {lines[row]}: {o.reason}" if lines.get(row) else o.reason
        answered.append((file.index, row, number, o.status.value, reason))
        if o.status is Status.ERROR and len(state.first_errors) < FIRST_ERRORS:
            error = RowError(file=file.path, row=row, line=lines[row], status=o.status, reason=o.reason)
            state.first_errors.append(error)
    state.answer(answered)
    return len(items)
