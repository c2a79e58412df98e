"""The plan: everything a run will do, decided from length histograms alone.

Reads no rows: time and memory depend on the number of distinct lengths, parts and files, hardly
on the number of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from staticjob.config import BatchingConfig
from staticjob.ladder import Fill, choose_rungs, fill_rungs
from staticjob.ledger import Ledger
from staticjob.memory import BEST_BUDGETS, Held, Target, fit_budget, predict
from staticjob.planning.cutting import cut_chunks
from staticjob.planning.decoding import LEAST_DECODE_BATCHES, START_SECONDS, Growth, idle_slots
from staticjob.planning.forecast import assumed_rates, chunk_seconds, forecast, rung_cost_slots
from staticjob.planning.grouping import group_files, pack_chunks
from staticjob.planning.head_sizes import HeadSizes
from staticjob.records import (
    Chunk,
    Orders,
    Plan,
    Prepared,
    Rates,
    RowError,
    Rung,
    SliceStats,
    SplitStats,
    Status,
)
from staticjob.terminal.units import plural

# Chunks wanted over the whole job, unless they get too small or too large to be worth a commit.
WANTED_CHUNKS = 96
LEAST_BATCHES = 64
# Rows of a chunk and bytes of its result are held in memory until it commits.
CHUNK_ROWS = 65_536
CHUNK_RESULT_BYTES = 128 * 2**20
# Share of the cost that a smaller token budget must save: it also makes more batches.
SMALLER_BUDGET_GAIN = 0.02
SHOWN_ERRORS = 20
SORTED_BATCH = 32


def make_plan(
    prepared: Prepared,
    splits: Sequence[SplitStats],
    *,
    kept_schema: str,
    max_length: int,
    model_config: Mapping[str, Any],
    head: HeadSizes,
    target: Target,
    rates: Rates | None,
    growth: Growth | None = None,
) -> Plan:
    """Ladder, chunks, packs, merge groups, memory, time and cost of one prepared, tokenized job.

    `max_length` is the resolved limit in tokens; `kept_schema` the unified schema of the kept columns
    (base64); `head` what the task's head adds; `target` the device, dtype and free memory of
    the run; `rates` measured speed, or None; `growth` that of rows that generate. Raises ConfigError when
    a fixed ladder does not hold the rows, or the device's memory not the batches.
    """
    config = prepared.config
    batching = config.batching
    parts = [part for split in splits for part in split.parts]
    histogram = length_histogram(splits)
    working_rates = rates if rates is not None and rates.shapes else assumed_rates(target.kind)
    fixed_budget = None if isinstance(batching.token_budget, str) else batching.token_budget
    longest = _longest_rung(histogram, batching.ladder, max_length)
    fitting = fit_budget(model_config, target, longest, head, fixed_budget, growth)
    smaller = [b for b in BEST_BUDGETS[target.kind] if b < fitting and fixed_budget is None and not growth]
    rung_cost = rung_cost_slots(working_rates) + (idle_slots(fitting, growth) if growth else 0)
    cap = growth.cap if growth else 0
    budget, fills = _ladder(histogram, [fitting, *smaller], batching, max_length, rung_cost, cap)
    chunks = cut_chunks(
        parts,
        fills,
        _chunk_slots(batching.chunk_slots, fills, budget, cap),
        min(CHUNK_ROWS, CHUNK_RESULT_BYTES // head.row_bytes),
        cap,
    )
    # Measured seconds of a batch hold its decoding; assumed ones do not.
    decode = growth.chunk_seconds if growth and rates is None else lambda chunk, kind: 0.0
    packs = pack_chunks(
        chunks,
        lambda chunk: chunk_seconds(working_rates, chunk) + decode(chunk, target.kind),
        start_seconds=START_SECONDS if growth else working_rates.start_seconds,
        max_packs=config.max_mapped_tasks,
    )
    file_rows = count_files(splits, len(prepared.files), lambda piece: piece.rows)
    ledger = sum((chunk.ledger for chunk in chunks), Ledger())
    return Plan(
        fingerprint=prepared.fingerprint,
        token_budget=budget,
        rungs=_rungs(fills, chunks),
        chunks=chunks,
        packs=packs,
        groups=group_files(
            prepared.files,
            count_files(splits, len(prepared.files), lambda piece: piece.items),
            result_row_bytes=head.row_bytes,
            max_groups=config.max_mapped_tasks,
        ),
        file_rows=file_rows,
        kept_schema=kept_schema,
        statuses=_sum_statuses(splits),
        first_errors=_first_errors(splits),
        ledger=ledger,
        orders=Orders(
            arrival=sum(split.arrival_slots for split in splits),
            sorted=sorted_slots(histogram),
            ladder=ledger.slots,
        ),
        memory=predict(model_config, target, _held(fills, chunks), head, growth),
        rates=rates,
        forecast=forecast(chunks, packs, rates, config.cost.gpu_hour),
    )


def pack_name(plan: Plan, index: int) -> str:
    """A pack's name for people, from its rungs: `L512–L320 · 3 chunks`."""
    lengths = {chunk.id: chunk.length for chunk in plan.chunks}
    pack = plan.packs[index]
    first, last = lengths[pack[0]], lengths[pack[-1]]
    rungs = f"L{first}" if first == last else f"L{first}–L{last}"
    return f"{rungs} · {plural(len(pack), 'chunk')}"


def length_histogram(splits: Sequence[SplitStats]) -> dict[int, int]:
    """Rows to run per token count, over all parts."""
    histogram: Counter[int] = Counter()
    for split in splits:
        for part in split.parts:
            histogram.update(dict(zip(part.lengths, part.counts, strict=True)))
    return dict(histogram)


def sorted_slots(histogram: Mapping[int, int], batch: int = SORTED_BATCH) -> int:
    """Slots of all rows fully sorted, `batch` at a time, each padded to its longest row."""
    slots = rank = 0
    total = sum(histogram.values())
    for length in sorted(histogram, reverse=True):
        end = rank + histogram[length]
        # Batches that begin within this length; the last batch of all may hold fewer rows.
        first, last = -(-rank // batch), -(-end // batch)
        rows = min(last * batch, total) - min(first * batch, total)
        slots += rows * length
        rank = end
    return slots


def count_files(
    splits: Sequence[SplitStats], files: int, size: Callable[[SliceStats], int]
) -> tuple[int, ...]:
    """Sum of `size` over the slices of every input file, by file index."""
    total = [0] * files
    for split in splits:
        for piece in split.slices:
            total[piece.file] += size(piece)
    return tuple(total)


def _longest_rung(histogram: Mapping[int, int], ladder: Sequence[int] | None, max_length: int) -> int:
    if ladder is not None:
        return ladder[-1]
    longest = max(histogram, default=1)
    return min(-(-longest // 8) * 8, max_length)


def _ladder(
    histogram: Mapping[int, int],
    budgets: Sequence[int],
    batching: BatchingConfig,
    max_length: int,
    rung_cost: float,
    growth: int,
) -> tuple[int, tuple[Fill, ...]]:
    """The budget that costs least and its filled rungs, longest first; `budgets` are descending.

    Small jobs leave large batches half empty; a smaller budget must save SMALLER_BUDGET_GAIN.
    """
    best: tuple[float, int, tuple[Fill, ...]] | None = None
    for budget in budgets:
        rungs = choose_rungs(
            histogram,
            budget,
            max_rungs=batching.max_rungs,
            rung_cost=rung_cost,
            max_length=max_length,
            fixed=batching.ladder,
            growth=growth,
        )
        fills = fill_rungs(histogram, rungs, budget, growth)[::-1]
        cost = sum(_width(fill, growth) for fill in fills) + rung_cost * len(fills)
        if best is None or cost < best[0] * (1 - SMALLER_BUDGET_GAIN):
            best = cost, budget, fills
    assert best is not None
    return best[1:]


def _width(fill: Fill, growth: int) -> int:
    return fill.batches * fill.batch * (fill.length + growth)


def _chunk_slots(wanted: int | str, fills: Sequence[Fill], budget: int, growth: int) -> int:
    if isinstance(wanted, int):
        return wanted
    total = sum(_width(fill, growth) for fill in fills)
    least = LEAST_DECODE_BATCHES if growth else LEAST_BATCHES
    return max(least * budget, total // WANTED_CHUNKS)


def _held(fills: Sequence[Fill], chunks: Sequence[Chunk]) -> list[Held]:
    rows = {fill.length: 0 for fill in fills}
    for chunk in chunks:
        rows[chunk.length] = max(rows[chunk.length], chunk.rows)
    return [Held(fill.length, fill.batch, rows[fill.length]) for fill in fills]


def _rungs(fills: Sequence[Fill], chunks: Sequence[Chunk]) -> tuple[Rung, ...]:
    ledgers = {fill.length: Ledger() for fill in fills}
    for chunk in chunks:
        ledgers[chunk.length] += chunk.ledger
    return tuple(
        Rung(
            length=fill.length,
            batch=fill.batch,
            rows=fill.rows,
            batches=fill.batches,
            ledger=ledgers[fill.length],
        )
        for fill in fills
    )


def _sum_statuses(splits: Sequence[SplitStats]) -> dict[Status, int]:
    total: Counter[Status] = Counter()
    for split in splits:
        total.update(split.statuses)
    return {status: total[status] for status in Status if total[status]}


def _first_errors(splits: Sequence[SplitStats]) -> tuple[RowError, ...]:
    errors = [error for split in splits for error in split.first_errors]
    return tuple(errors[:SHOWN_ERRORS])
