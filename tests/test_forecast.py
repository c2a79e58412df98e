"""The forecast: time and cost follow from measured rates, and nothing is guessed without them."""

from __future__ import annotations

import pytest
from planning import RATES, job, planned, split

from staticjob.memory import Target
from staticjob.planning.forecast import COMMIT_SECONDS, assumed_rates, rung_cost_slots, seconds_per_slot


def test_without_rates_nothing_is_forecast_and_the_basis_says_so() -> None:
    forecast = planned([split(0, [[5] * 100])]).forecast
    assert forecast.seconds is forecast.cost is forecast.cost_per_million_useful_tokens is None
    assert "no rates" in forecast.basis


@pytest.mark.parametrize(
    ("length", "microseconds"), [(64, 100), (512, 200), (288, 150), (8, 100), (960, 300)]
)
def test_a_slot_costs_what_lies_between_the_measured_shapes(length: int, microseconds: float) -> None:
    assert seconds_per_slot(RATES, length) == pytest.approx(microseconds * 1e-6)


@pytest.mark.parametrize(
    ("ladder", "said"),
    [([64, 512], ""), ([32, 128, 640], ", extrapolated from lengths of 64 to 512 to 32, 640")],
)
def test_the_basis_says_which_lengths_are_extrapolated(ladder: list[int], said: str) -> None:
    rows = [[length] * 50 for length in ladder]
    config = job(batching={"token_budget": 4096, "ladder": ladder})
    plan = planned([split(0, rows)], config, rates=RATES, max_length=1024)
    assert f"({RATES.source}){said}; " in plan.forecast.basis


def test_one_measured_shape_stands_for_all_lengths() -> None:
    rates = RATES.model_copy(update={"shapes": RATES.shapes[:1]})
    assert seconds_per_slot(rates, 8) == seconds_per_slot(rates, 4096) == pytest.approx(100e-6)


def test_seconds_are_compute_and_commits_and_starts_and_warm_ups() -> None:
    # 800 rows of 512 in batches of 8: 100 batches of 0.8192 s, and two packs of one rung each.
    config = job(batching={"token_budget": 4096, "ladder": [512], "chunk_slots": 4096 * 10})
    plan = planned([split(0, [[512] * 800])], config, rates=RATES)
    starts = len(plan.packs) * (RATES.start_seconds + RATES.rung_seconds)
    expected = 81.92 + starts + len(plan.chunks) * COMMIT_SECONDS
    assert plan.forecast.seconds == pytest.approx(expected)


def test_lanes_that_have_no_batch_are_waited_for() -> None:
    # 3 batches on 2 lanes take two turns, as 4 would.
    three, four = (
        planned(
            [split(0, [[512] * rows])],
            job(batching={"token_budget": 4096, "ladder": [512]}),
            rates=RATES,
            target=Target("cpu", "float32", lanes=2),
        ).forecast
        for rows in (24, 32)
    )
    assert three.seconds == four.seconds


def test_cost_follows_from_the_price_of_an_hour() -> None:
    config = job(batching={"token_budget": 4096, "ladder": [512]}, cost={"gpu_hour": 3.6})
    forecast = planned([split(0, [[256] * 800])], config, rates=RATES).forecast
    assert forecast.seconds is not None
    assert forecast.cost == pytest.approx(forecast.seconds / 1000)
    assert forecast.cost_per_million_useful_tokens == pytest.approx(forecast.cost / (256 * 800) * 1e6)


def test_without_a_price_there_is_time_but_no_cost() -> None:
    forecast = planned([split(0, [[5] * 100])], rates=RATES).forecast
    assert forecast.seconds is not None
    assert forecast.cost is None


def test_a_rung_is_priced_in_slots_at_the_measured_speed() -> None:
    assert rung_cost_slots(RATES) == pytest.approx(0.2 * (4096 + 4096) / (0.4096 + 0.8192))
    assert rung_cost_slots(assumed_rates("cpu")) == pytest.approx(1_050)


def test_slower_rungs_make_a_shorter_ladder() -> None:
    splits = [split(0, [[1 + i % 512 for i in range(20_000)]])]
    quick, slow = (
        planned(splits, rates=RATES.model_copy(update={"rung_seconds": seconds})) for seconds in (0.01, 30.0)
    )
    assert len(slow.rungs) < len(quick.rungs)


def test_an_unmeasured_gpu_is_planned_with_dearer_rungs_than_a_cpu() -> None:
    splits = [split(0, [[1 + i % 512 for i in range(20_000)]])]
    config = job(batching={"token_budget": 4096})
    on_cpu, on_gpu = (planned(splits, config, target=Target(device, "float32")) for device in ("cpu", "cuda"))
    assert len(on_gpu.rungs) < len(on_cpu.rungs)
