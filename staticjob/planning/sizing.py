"""Token budget, ladder and chunks that fit the device's memory and cost least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from staticjob.config.job import BatchingConfig
from staticjob.ladder import Fill, choose_rungs, fill_rungs
from staticjob.memory import BEST_BUDGETS, Held, does_not_fit, fit_budget, fits, predict
from staticjob.planning.basis import Basis
from staticjob.planning.cutting import cut_chunks
from staticjob.planning.decoding import LEAST_DECODE_BATCHES
from staticjob.planning.forecast import idle_slots, rung_cost_slots
from staticjob.records.memory import MemoryPlan
from staticjob.records.plan import Chunk
from staticjob.records.tokens import PartStats

# Chunks wanted over the whole job, unless they get too small or too large to be worth a commit.
WANTED_CHUNKS = 96
LEAST_BATCHES = 128
# Rows of a chunk and bytes of its result are held in memory until it commits.
CHUNK_ROWS = 65_536
CHUNK_RESULT_BYTES = 128 * 2**20
# Share of the cost that a smaller token budget must save: it also makes more batches.
SMALLER_BUDGET_GAIN = 0.02


@dataclass(frozen=True)
class Sized:
    """The filled rungs, longest first, the chunks they are cut into, and the memory they take."""

    budget: int
    fills: tuple[Fill, ...]
    chunks: tuple[Chunk, ...]
    memory: MemoryPlan


def size_chunks(
    parts: Sequence[PartStats], histogram: Mapping[int, int], batching: BatchingConfig, basis: Basis
) -> Sized:
    """The job's chunks; where memory is short, of fewer rows, then of smaller batches.

    ConfigError when a fixed ladder does not hold the rows, or the device's memory not the batches.
    """
    stated = None if isinstance(batching.token_budget, str) else batching.token_budget
    longest = _longest_rung(histogram, batching, basis)
    budget = fit_budget(basis.model_config, basis.target, longest, basis.head, stated, basis.growth)
    while True:
        smaller = [] if stated or basis.growth else [b for b in BEST_BUDGETS[basis.target.kind] if b < budget]
        sized = _cut(parts, histogram, [budget, *smaller], batching, basis)
        if fits(sized.memory):
            return sized
        if stated is not None or sized.budget <= longest + basis.cap:
            raise does_not_fit(sized.memory, stated)
        budget = sized.budget // 2


def _cut(
    parts: Sequence[PartStats],
    histogram: Mapping[int, int],
    budgets: Sequence[int],
    batching: BatchingConfig,
    basis: Basis,
) -> Sized:
    """Chunks of as many rows as memory holds the results of, at least a batch."""
    budget, fills = _ladder(histogram, budgets, batching, basis)
    slots = _chunk_slots(batching.chunk_slots, fills, budget, basis)
    most = min(CHUNK_ROWS, CHUNK_RESULT_BYTES // basis.head.row_bytes)
    while True:
        chunks = cut_chunks(parts, fills, slots, most, basis.cap)
        held = _held(fills, chunks)
        memory = predict(basis.model_config, basis.target, held, basis.head, basis.growth)
        if fits(memory) or all(shape.rows <= shape.batch for shape in held):
            return Sized(budget, fills, chunks, memory)
        most //= 2


def _longest_rung(histogram: Mapping[int, int], batching: BatchingConfig, basis: Basis) -> int:
    if batching.ladder is not None:
        return batching.ladder[-1]
    longest = max(histogram, default=1)
    return min(-(-longest // basis.multiple) * basis.multiple, basis.max_length)


def _ladder(
    histogram: Mapping[int, int], budgets: Sequence[int], batching: BatchingConfig, basis: Basis
) -> tuple[int, tuple[Fill, ...]]:
    """The budget that costs least and its filled rungs, longest first; `budgets` are descending.

    Small jobs leave large batches half empty; a smaller budget must save SMALLER_BUDGET_GAIN.
    """
    best: tuple[float, int, tuple[Fill, ...]] | None = None
    for budget in budgets:
        # A rung costs its warm-up and commit, and the lanes that wait for its last batch.
        rung_cost = rung_cost_slots(basis.working_rates) + idle_slots(budget, basis.target.lanes)
        rungs = choose_rungs(
            histogram,
            budget,
            max_rungs=batching.max_rungs,
            rung_cost=rung_cost,
            max_length=basis.max_length,
            multiple=basis.multiple,
            fixed=batching.ladder,
            growth=basis.cap,
        )
        fills = fill_rungs(histogram, rungs, budget, basis.cap)[::-1]
        cost = sum(_width(fill, basis.cap) for fill in fills) + rung_cost * len(fills)
        if best is None or cost < best[0] * (1 - SMALLER_BUDGET_GAIN):
            best = cost, budget, fills
    assert best is not None
    return best[1:]


def _width(fill: Fill, growth: int) -> int:
    return fill.batches * fill.batch * (fill.length + growth)


def _chunk_slots(wanted: int | str, fills: Sequence[Fill], budget: int, basis: Basis) -> int:
    if isinstance(wanted, int):
        return wanted
    total = sum(_width(fill, basis.cap) for fill in fills)
    least = LEAST_DECODE_BATCHES if basis.growth else LEAST_BATCHES
    return max(least * budget, total // WANTED_CHUNKS)


def _held(fills: Sequence[Fill], chunks: Sequence[Chunk]) -> list[Held]:
    rows = {fill.length: 0 for fill in fills}
    for chunk in chunks:
        rows[chunk.length] = max(rows[chunk.length], chunk.rows)
    return [Held(fill.length, fill.batch, rows[fill.length]) for fill in fills]
