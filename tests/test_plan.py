"""The plan: every runnable row in exactly one chunk, every slot accounted for, bounded task counts."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import RATES, docstring_lengths, job, planned, split

from staticjob.config.job import JobConfig
from staticjob.errors import ConfigError
from staticjob.ledger import Ledger
from staticjob.plan import pack_name, sorted_slots
from staticjob.planning.forecast import chunk_seconds
from staticjob.records.plan import Plan
from staticjob.records.tokens import PartStats, SplitStats


def check(plan: Plan, splits: list[SplitStats]) -> None:
    """What every plan promises, whatever its rows."""
    parts = {part.id: part for split in splits for part in split.parts}
    taken: dict[str, list[tuple[int, int]]] = {name: [] for name in parts}
    for chunk in plan.chunks:
        assert chunk.rows == sum(span.stop - span.start for span in chunk.spans)
        assert (chunk.batches - 1) * chunk.batch < chunk.rows <= chunk.batches * chunk.batch
        assert chunk.ledger.slots == chunk.batches * chunk.batch * chunk.length
        assert chunk.ledger.dummy == (chunk.batches * chunk.batch - chunk.rows) * chunk.length
        for span in chunk.spans:
            rows, ends = row_lengths(parts[span.part])
            taken[span.part].append((span.start, span.stop))
            assert max(rows[span.start : span.stop]) <= chunk.length
            assert (span.token_start, span.token_stop) == (ends[span.start], ends[span.stop])
    for name, ranges in taken.items():
        ordered = sorted(ranges)
        assert [start for start, _ in ordered] == [0, *(stop for _, stop in ordered)][: len(ordered)]
        assert (ordered[-1][1] if ordered else 0) == parts[name].rows
    for rung in plan.rungs:
        chunks = [chunk for chunk in plan.chunks if chunk.length == rung.length]
        assert all(chunk.rows == chunk.batches * chunk.batch for chunk in chunks[:-1])
        assert sum(chunk.rows for chunk in chunks) == rung.rows
        assert sum(chunk.batches for chunk in chunks) == rung.batches
        assert sum((chunk.ledger for chunk in chunks), Ledger()) == rung.ledger
        assert rung.batch == max(1, plan.token_budget // rung.length)
    assert sum((rung.ledger for rung in plan.rungs), Ledger()) == plan.ledger
    assert plan.ledger.useful == sum(part.tokens for part in parts.values())
    assert plan.orders.ladder == plan.ledger.slots
    lengths = [chunk.length for chunk in plan.chunks]
    assert lengths == sorted(lengths, reverse=True)
    assert [name for pack in plan.packs for name in pack] == [chunk.id for chunk in plan.chunks]
    assert len({chunk.id for chunk in plan.chunks}) == len(plan.chunks)
    assert len({(c.length, c.batch) for c in plan.chunks}) == len(plan.rungs)


def row_lengths(part: PartStats) -> tuple[list[int], list[int]]:
    """Token count of every row of a part, and tokens before every row (one more)."""
    counts = zip(part.lengths, part.counts, strict=True)
    rows = [length for length, count in counts for _ in range(count)]
    return rows, [0, *accumulate(rows)]


part_lengths = st.lists(st.integers(1, 64), max_size=120)


@settings(deadline=None, max_examples=100)
@given(
    inputs=st.lists(st.lists(part_lengths, min_size=1, max_size=3), min_size=1, max_size=4),
    budget=st.integers(1, 300),
    chunk_slots=st.integers(1, 2_000),
    ladder=st.none() | st.just((3, 16, 20, 64)),
)
def test_every_row_is_in_exactly_one_chunk_and_the_ledger_sums(
    inputs: list[list[list[int]]], budget: int, chunk_slots: int, ladder: tuple[int, ...] | None
) -> None:
    batching = {"token_budget": budget, "chunk_slots": chunk_slots, "ladder": ladder}
    splits = [split(i, parts) for i, parts in enumerate(inputs)]
    check(planned(splits, job(batching=batching)), splits)


@pytest.fixture(scope="module")
def docstring_splits() -> list[SplitStats]:
    lengths = list(docstring_lengths())
    random.Random(0).shuffle(lengths)
    return [split(i, [lengths[i::6]]) for i in range(6)]


@pytest.mark.parametrize("budget", [2048, 4096])
def test_the_docstring_corpus_plans_at_nine_tenths_useful_and_far_below_arrival_order(
    docstring_splits: list[SplitStats], budget: int
) -> None:
    plan = planned(docstring_splits, job(batching={"token_budget": budget}))
    check(plan, docstring_splits)
    assert plan.ledger.useful_share >= 0.9
    assert plan.orders.arrival > 5 * plan.orders.ladder
    assert plan.orders.sorted <= plan.orders.ladder


def test_the_plan_depends_on_lengths_and_not_on_the_order_of_rows(docstring_splits: list[SplitStats]) -> None:
    assert planned(docstring_splits) == planned(docstring_splits)


def test_a_rung_promotes_its_longest_rows() -> None:
    # Rung 8 fills 8 of its 9 rows; the one that moves up to rung 16 is the row of 7, not one of 2.
    splits = [split(0, [[7] + [2] * 8 + [16] * 3])]
    plan = planned(splits, job(batching={"token_budget": 64, "ladder": [8, 16]}))
    check(plan, splits)
    assert [(r.length, r.rows, r.ledger.useful) for r in plan.rungs] == [(16, 4, 55), (8, 8, 16)]


def test_zero_rows_make_a_valid_plan_without_chunks() -> None:
    for splits in ([], [split(0, [])], [split(0, [[]]), split(1, [[]])]):
        plan = planned(splits, rates=RATES)
        assert plan.rungs == plan.chunks == plan.packs == ()
        assert plan.ledger == Ledger()
        assert plan.forecast.seconds == 0
        assert [file for group in plan.groups for file in group.files] == list(range(len(splits)))


def test_one_row_makes_one_chunk_in_one_pack() -> None:
    plan = planned([split(0, [[5]])])
    assert len(plan.chunks) == len(plan.packs) == 1


def test_a_chunk_is_named_by_its_content_and_not_by_its_place() -> None:
    config = job(batching={"token_budget": 64, "ladder": [8, 64]})
    short, both = (
        planned([split(0, [[8] * 20])], config),
        planned([split(0, [[8] * 20]), split(1, [[64]])], config),
    )
    assert both.chunks[0].length == 64
    assert [chunk.id for chunk in both.chunks[1:]] == [chunk.id for chunk in short.chunks]


def test_spans_grow_with_chunks_and_rungs_and_not_with_rows() -> None:
    rng = random.Random(1)
    splits = [split(i, [[rng.randint(1, 64) for _ in range(4000)]]) for i in range(8)]
    plan = planned(splits, job(batching={"token_budget": 256}))
    check(plan, splits)
    assert sum(len(c.spans) for c in plan.chunks) <= len(plan.chunks) + 8 * len(plan.rungs)


def test_a_fixed_ladder_that_misses_a_row_is_refused_at_plan() -> None:
    with pytest.raises(ConfigError, match="a row has 65 tokens"):
        planned([split(0, [[3, 65]])], job(batching={"ladder": [8, 64]}))


def test_the_sorted_order_is_what_sorting_the_rows_costs() -> None:
    rng = random.Random(2)
    for rows in (0, 1, 31, 32, 33, 1000):
        lengths = sorted((rng.randint(1, 50) for _ in range(rows)), reverse=True)
        expected = sum(len(b) * b[0] for b in (lengths[i : i + 32] for i in range(0, rows, 32)))
        assert sorted_slots(Counter(lengths)) == expected


def large_split(number: int, rows_per_length: int) -> SplitStats:
    """A split of 256 x `rows_per_length` rows, made without listing them."""
    counts = tuple([rows_per_length] * 256)
    lengths = tuple(range(512, 0, -2))
    part = (
        split(number, [[1]])
        .parts[0]
        .model_copy(
            update={
                "rows": sum(counts),
                "tokens": sum(a * b for a, b in zip(lengths, counts, strict=True)),
                "lengths": lengths,
                "counts": counts,
            }
        )
    )
    base = split(number, [[1]])
    piece = base.slices[0].model_copy(update={"rows": part.rows})
    return base.model_copy(update={"parts": (part,), "slices": (piece,)})


def test_ten_million_rows_plan_in_little_memory_and_few_objects() -> None:
    splits = [large_split(i, 400) for i in range(100)]
    tracemalloc.start()
    plan = planned(splits)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(rung.rows for rung in plan.rungs) == 100 * 256 * 400
    assert peak < 100 * 2**20
    assert max(chunk.rows for chunk in plan.chunks) <= 65_536
    assert len(plan.chunks) < 400


def test_five_thousand_files_stay_under_the_mapping_limit() -> None:
    splits = [split(i, [[1 + i % 300] * 50]) for i in range(5_000)]
    plan = planned(splits, airflow_job(40), rates=RATES)
    assert len(plan.packs) <= 40
    assert len(plan.groups) <= 40
    assert [file for group in plan.groups for file in group.files] == list(range(5_000))
    assert sum(group.items for group in plan.groups) == sum(plan.file_rows) == 250_000


def airflow_job(limit: int, **batching: object) -> JobConfig:
    return job(airflow={"max_mapped_tasks": limit}, batching=batching)


def test_a_small_job_takes_a_smaller_budget_than_a_large_one() -> None:
    lengths = [512] * 12 + [20] * 150
    small, large = planned([split(0, [lengths])]), planned([split(0, [lengths * 100])])
    assert (small.token_budget, large.token_budget) == (1024, 2048)
    given = planned([split(0, [lengths])], job(batching={"token_budget": 4096}))
    assert given.token_budget == 4096
    assert given.ledger.slots > small.ledger.slots


def test_packs_are_balanced_by_time_and_outlast_the_start_of_the_engine() -> None:
    splits = [split(i, [[1 + (i * 37 + k) % 500 for k in range(2_000)]]) for i in range(10)]
    plan = planned(splits, airflow_job(512), rates=RATES)
    times = {chunk.id: chunk_seconds(RATES, chunk) for chunk in plan.chunks}
    seconds = [sum(times[name] for name in pack) for pack in plan.packs]
    assert len(plan.packs) > 1
    mean = sum(seconds) / len(seconds)
    assert mean > 9 * RATES.start_seconds
    assert max(seconds) < 1.6 * mean


def test_thousands_of_chunks_are_packed_under_the_limit() -> None:
    splits = [split(0, [[512] * 6_000])]
    plan = planned(splits, airflow_job(8, chunk_slots=4096), rates=RATES)
    assert len(plan.chunks) == 750
    assert len(plan.packs) == 8


def test_a_pack_is_named_for_people() -> None:
    config = job(batching={"token_budget": 64, "ladder": [8, 64]})
    plan = planned([split(0, [[8] * 20 + [64] * 4])], config)
    names = [chunk.id for chunk in plan.chunks]
    assert pack_name(plan.model_copy(update={"packs": (names,)}), 0) == "L64–L8 · 2 chunks"
    assert pack_name(plan.model_copy(update={"packs": (names[:1],)}), 0) == "L64 · 1 chunk"


def test_statuses_and_errors_of_all_splits_are_counted() -> None:
    plan = planned([split(0, [[5, 6]]), split(1, [[7]])])
    assert plan.statuses == {"ok": 3}
    assert plan.file_rows == (2, 1)
