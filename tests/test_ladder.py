"""The ladder: the cheapest rungs and the cheapest place for every remainder, exactly."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import docstring_lengths

from staticjob.errors import ConfigError
from staticjob.ladder import batch_rows, choose_rungs, fill_rungs

Histogram = dict[int, int]


def slots(histogram: Histogram, rungs: tuple[int, ...], budget: int) -> int:
    return sum(fill.slots for fill in fill_rungs(histogram, rungs, budget))


def cheapest_fill(histogram: Histogram, rungs: tuple[int, ...], budget: int) -> int | None:
    """All ways to pad or promote each rung's remainder, tried one by one; None without a way."""

    def least(i: int, carried: int) -> int:
        shorter = rungs[i - 1] if i else 0
        rows = carried + sum(n for length, n in histogram.items() if shorter < length <= rungs[i])
        batch = batch_rows(rungs[i], budget)
        full, rest = divmod(rows, batch)
        last = i == len(rungs) - 1
        padded = -(-rows // batch) * batch * rungs[i] + (0 if last else least(i + 1, 0))
        if last or not rest:
            return padded
        return min(padded, full * batch * rungs[i] + least(i + 1, rest))

    return least(0, 0) if rungs and max(histogram) <= rungs[-1] else None


histograms = st.dictionaries(st.integers(1, 40), st.integers(1, 30), min_size=1, max_size=8)


@settings(deadline=None, max_examples=150)
@given(
    histogram=histograms,
    budget=st.integers(8, 200),
    cost=st.integers(0, 300),
    most=st.none() | st.integers(1, 3),
)
def test_the_chosen_ladder_is_as_cheap_as_the_best_of_all_ladders(
    histogram: Histogram, budget: int, cost: int, most: int | None
) -> None:
    grid = sorted({-(-length // 8) * 8 for length in histogram})
    best = min(
        total + cost * len(rungs)
        for size in range(1, min(most or 5, 5) + 1)
        for rungs in combinations(grid, size)
        if (total := cheapest_fill(histogram, rungs, budget)) is not None
    )
    rungs = choose_rungs(histogram, budget, max_rungs=most or "auto", rung_cost=cost, max_length=40)
    assert len(rungs) <= (most or 5)
    assert slots(histogram, rungs, budget) + cost * len(rungs) <= best


@settings(deadline=None, max_examples=150)
@given(histogram=histograms, budget=st.integers(8, 200), rungs=st.sets(st.integers(1, 39), max_size=4))
def test_a_fixed_ladder_is_filled_with_the_fewest_slots_and_every_row(
    histogram: Histogram, budget: int, rungs: set[int]
) -> None:
    ladder = (*sorted(rungs), 40)
    fills = fill_rungs(histogram, ladder, budget)
    assert sum(fill.rows for fill in fills) == sum(histogram.values())
    assert all(0 < fill.rows <= fill.batches * fill.batch for fill in fills)
    assert all(fill.batches == -(-fill.rows // fill.batch) for fill in fills)
    best = cheapest_fill(histogram, ladder, budget)
    assert best is not None
    assert sum(fill.slots for fill in fills) <= best


def test_a_remainder_is_promoted_when_the_next_rung_has_room_for_it() -> None:
    # Rung 8 holds 8 rows a batch, rung 16 holds 4: one row of 8 too many, one place of 16 free.
    fills = fill_rungs({8: 9, 16: 3}, (8, 16), 64)
    assert [(fill.length, fill.rows, fill.batches) for fill in fills] == [(8, 8, 1), (16, 4, 1)]


def test_a_remainder_is_padded_when_promotion_would_open_a_dearer_batch() -> None:
    fills = fill_rungs({8: 15, 64: 1}, (8, 64), 64)
    assert [(fill.length, fill.rows, fill.batches) for fill in fills] == [(8, 15, 2), (64, 1, 1)]


def test_promoted_rows_may_travel_over_several_rungs() -> None:
    fills = fill_rungs({8: 9, 16: 4, 32: 1}, (8, 16, 32), 64)
    assert [(fill.length, fill.rows) for fill in fills] == [(8, 8), (16, 4), (32, 2)]


def test_a_dearer_rung_makes_a_shorter_ladder() -> None:
    histogram = dict.fromkeys(range(1, 513), 100)
    sizes = [
        len(choose_rungs(histogram, 4096, max_rungs="auto", rung_cost=cost, max_length=512))
        for cost in (0, 20_000, 200_000, 10**9)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3] == 1


@pytest.mark.parametrize(
    ("longest", "limit", "rung"), [(1, 512, 8), (60, 512, 64), (509, 512, 512), (509, 510, 510)]
)
def test_the_longest_rung_is_the_longest_row_rounded_up_but_never_beyond_the_limit(
    longest: int, limit: int, rung: int
) -> None:
    rungs = choose_rungs({longest: 5}, 64, max_rungs="auto", rung_cost=0, max_length=limit)
    assert rungs == (rung,)


def test_a_batch_of_the_longest_rows_holds_at_least_one_row() -> None:
    assert fill_rungs({512: 3}, (512,), 256)[0].batch == 1


def test_no_rows_need_no_rungs() -> None:
    assert choose_rungs({}, 4096, max_rungs="auto", rung_cost=1, max_length=512) == ()
    assert choose_rungs({7: 0}, 4096, max_rungs=3, rung_cost=1, max_length=512) == ()
    assert fill_rungs({}, (), 4096) == ()
    assert fill_rungs({}, (64, 128), 4096) == ()


def test_a_fixed_ladder_shorter_than_a_row_is_refused_with_the_length() -> None:
    with pytest.raises(ConfigError, match="row has 300 tokens but the last rung is 256"):
        choose_rungs({300: 1}, 4096, max_rungs="auto", rung_cost=0, max_length=512, fixed=(64, 256))


def test_a_fixed_rung_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="rung 1024 exceeds the limit of 512"):
        choose_rungs({300: 1}, 4096, max_rungs="auto", rung_cost=0, max_length=512, fixed=(64, 1024))


def test_a_context_of_100_000_tokens_is_searched_on_a_coarser_grid() -> None:
    histogram = dict.fromkeys(range(1, 100001, 7), 1)
    rungs = choose_rungs(histogram, 65_536, max_rungs=12, rung_cost=0, max_length=131_072)
    assert len(rungs) == 12
    assert all(rung % 8 == 0 for rung in rungs)
    assert rungs[-1] >= max(histogram)


@pytest.mark.parametrize("budget", [2048, 4096])
def test_the_docstring_corpus_is_at_least_nine_tenths_useful_with_an_automatic_ladder(budget: int) -> None:
    lengths = docstring_lengths()
    histogram = dict(Counter(lengths))
    rungs = choose_rungs(histogram, budget, max_rungs="auto", rung_cost=1_000, max_length=512)
    assert sum(lengths) / slots(histogram, rungs, budget) >= 0.9
