"""The plan: everything a run will do, decided from length histograms alone.

Reads no rows: time and memory depend on the number of distinct lengths, parts and files, hardly
on the number of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from staticjob.ladder import Fill
from staticjob.ledger import Ledger
from staticjob.planning.basis import Basis
from staticjob.planning.decoding import START_SECONDS
from staticjob.planning.forecast import chunk_seconds, forecast
from staticjob.planning.grouping import group_files, pack_chunks
from staticjob.planning.sizing import size_chunks
from staticjob.records.plan import Chunk, Orders, Plan, Rung
from staticjob.records.prepared import Prepared
from staticjob.records.status import RowError, Status
from staticjob.records.tokens import SliceStats, SplitStats
from staticjob.units import plural

SHOWN_ERRORS = 20
SORTED_BATCH = 32


def make_plan(prepared: Prepared, splits: Sequence[SplitStats], basis: Basis) -> Plan:
    """Ladder, chunks, packs, merge groups, memory, time and cost of one prepared, tokenized job.

    Raises ConfigError when a fixed ladder does not hold the rows, or the device's memory not the batches.
    """
    config, growth = prepared.config, basis.growth
    parts = [part for split in splits for part in split.parts]
    histogram = length_histogram(splits)
    sized = size_chunks(parts, histogram, config.batching, basis)
    chunks, rates = sized.chunks, basis.working_rates
    # Measured seconds of a batch hold its decoding; assumed ones do not.
    decode = growth.chunk_seconds if growth and basis.rates is None else lambda chunk, kind: 0.0
    # A chunk that generates was measured with its idle lanes.
    lanes = 1 if growth else basis.target.lanes
    packs = pack_chunks(
        chunks,
        lambda chunk: chunk_seconds(rates, chunk, lanes) + decode(chunk, basis.target.kind),
        start_seconds=START_SECONDS if growth else rates.start_seconds,
        max_packs=config.max_mapped_tasks,
    )
    file_rows = count_files(splits, len(prepared.files), lambda piece: piece.rows)
    ledger = sum((chunk.ledger for chunk in chunks), Ledger())
    return Plan(
        fingerprint=prepared.fingerprint,
        token_budget=sized.budget,
        rungs=_rungs(sized.fills, chunks),
        chunks=chunks,
        packs=packs,
        groups=group_files(
            prepared.files,
            count_files(splits, len(prepared.files), lambda piece: piece.items),
            result_row_bytes=basis.head.row_bytes,
            max_groups=config.max_mapped_tasks,
        ),
        file_rows=file_rows,
        kept_schema=basis.kept_schema,
        statuses=_sum_statuses(splits),
        first_errors=_first_errors(splits),
        ledger=ledger,
        orders=Orders(
            arrival=sum(split.arrival_slots for split in splits),
            sorted=sorted_slots(histogram),
            ladder=ledger.slots,
        ),
        memory=sized.memory,
        rates=basis.rates,
        forecast=forecast(chunks, packs, basis.rates, config.cost.gpu_hour, lanes),
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


def sorted_slots(histogram: Mapping[int, int]) -> int:
    """Slots of all rows fully sorted, SORTED_BATCH at a time, each padded to its longest row."""
    slots = rank = 0
    total = sum(histogram.values())
    for length in sorted(histogram, reverse=True):
        end = rank + histogram[length]
        # Batches that begin within this length; the last batch of all may hold fewer rows.
        first, last = -(-rank // SORTED_BATCH), -(-end // SORTED_BATCH)
        rows = min(last * SORTED_BATCH, total) - min(first * SORTED_BATCH, total)
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
