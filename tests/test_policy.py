"""The decision between static and continuous batching: prices by hand, and choices near the best."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from replay import replay

from staticjob.generating.decode_rates import StaticRates, VllmRates, VllmStep, fit_rates
from staticjob.generating.policy import Rules, Running, Scope, Waiting, costs, decide
from staticjob.generating.survival import Observed, survival
from staticjob.generating.tail_policy import TailPolicy

STATIC = StaticRates(batch=32, prefill_seconds=3.5, step_seconds=((64, 0.12), (128, 0.14)), source="test")
VLLM = VllmRates(
    start_seconds=60, prefill_tokens_per_second=600, step_seconds=0.03, row_seconds=0.01, max_rows=64
)
RULES = Rules(static=STATIC, vllm=VLLM)
CAP = 512


def ragged(rows: int, seed: int = 0, median: float = 24, sigma: float = 1.0) -> np.ndarray:
    """Log-normal lengths; the longest of a few hundred is about 20 times the median."""
    lengths = np.random.default_rng(seed).lognormal(np.log(median), sigma, rows)
    return np.clip(lengths, 1, CAP).astype(np.int64)


def curve_from(lengths: np.ndarray, cap: int = CAP) -> np.ndarray:
    seen = Observed(cap)
    seen.add_lengths(Counter(lengths))
    return survival(seen)


def cost(scope: Scope, threshold: int, rest: bool, share: np.ndarray, rules: Rules) -> float:
    return float(costs(scope, np.array([threshold]), rest, share, rules)[0])


def test_the_curve_of_whole_lengths_is_the_share_of_longer_rows():
    lengths = np.repeat([3, 5, 5, 9, 12], 10)
    share = curve_from(lengths, 12)
    for n in range(12):
        assert share[n] == pytest.approx((lengths > n).mean())
    assert share[12] == 0


def test_batches_add_up_to_the_curve_of_their_lengths():
    lengths = ragged(64)
    one, two = Observed(CAP), Observed(CAP)
    one.add_lengths(Counter(lengths))
    for rows in (lengths[:32], lengths[32:]):
        two.add_curve(32, [int((rows > n).sum()) for n in range(1, rows.max() + 1)])
    np.testing.assert_array_equal(one.at_risk, two.at_risk)
    np.testing.assert_array_equal(one.ended, two.ended)


def test_rows_handed_over_count_as_alive_until_then_and_not_as_ended():
    lengths = np.array([2] * 16 + [30] * 16)
    cut, whole = Observed(40), Observed(40)
    whole.add_lengths(Counter(np.tile(lengths, 20)))
    cut.add_lengths(Counter(np.tile(lengths, 19)))
    cut.add_curve(32, [32, 16, 16])  # handed over with 16 rows after token 3
    np.testing.assert_allclose(survival(cut)[:30], survival(whole)[:30])


def test_without_any_ending_every_row_is_expected_to_reach_the_cap():
    seen = Observed(100)
    seen.add_curve(32, [32] * 10)
    assert survival(seen).tolist() == [1.0] * 100 + [0.0]
    assert survival(Observed(100)).tolist() == [1.0] * 100 + [0.0]


def test_an_unseen_tail_goes_on_as_a_power_of_the_length():
    lengths = np.floor(10 * np.random.default_rng(0).pareto(1.5, 4000) + 10).astype(int)
    seen = Observed(CAP)
    seen.add_curve(4000, [int((lengths > n).sum()) for n in range(1, 81)])
    share = survival(seen)
    assert share[80] == pytest.approx((lengths > 80).mean())
    assert share[320] == pytest.approx((lengths > 320).mean(), rel=0.25)


def test_an_earlier_run_counts_as_a_bounded_number_of_rows():
    earlier, now = Observed(50), Observed(50)
    earlier.add_lengths(Counter([10] * 100_000))
    now.add_lengths(Counter([40] * 2560))
    assert survival(now.plus(earlier))[10] == pytest.approx(2560 / 2816)
    assert survival(Observed(50).plus(earlier))[9:11].tolist() == [1.0, 0.0]


def test_prices_are_those_worked_out_by_hand():
    share = np.array([1, 1, 1, 0.5, 0.5, 0.0])  # half end with token 3, half with token 5, the cap
    scope = Scope(prompt=64, mean_prompt=50, cap=5, rows_to_come=32)
    flat = StaticRates(batch=32, prefill_seconds=2.0, step_seconds=((64, 0.1),), source="test")
    rules = Rules(static=flat, vllm=VLLM)
    # All static: the prefill gives token 1, four steps the others; some row of 32 lives to the last.
    assert cost(scope, 5, False, share, rules) == pytest.approx(2.0 + 4 * 0.1, abs=1e-6)
    # After two steps (three tokens) 16 rows are left, each with two tokens to come.
    tail = 60 + 16 * 53 / 600 + 2 * 0.03 + 32 * 0.01
    assert cost(scope, 2, False, share, rules) == pytest.approx(2.0 + 2 * 0.1 + tail, abs=1e-3)
    # All to vLLM: 3 steps of 32 rows, 2 of 16.
    pool = 60 + 32 * 50 / 600 + 5 * 0.03 + (3 * 32 + 2 * 16) * 0.01
    assert cost(scope, 0, True, share, rules) == pytest.approx(pool, abs=1e-3)
    # A batch at step 2 with its 16 rows, and 4 rows waiting with 4 tokens; vLLM runs already.
    running = Scope(64, 50, 5, 0, (Running(2, 16),), (Waiting(4, 4),), start_share=0)
    assert cost(running, 5, False, share, rules) == pytest.approx(
        2 * 0.1 + 4 * 54 / 600 + 0.03 * (1 - np.exp(-4)) + 4 * 0.01, abs=1e-6
    )


def test_lanes_share_the_work_of_several_batches_and_not_of_one():
    share = curve_from(np.full(64, 100))
    two = Rules(static=STATIC.model_copy(update={"lanes": 2}), vllm=VLLM)
    many, one = Scope(64, 64, CAP, 256), Scope(64, 64, CAP, 32)
    assert cost(many, CAP, False, share, two) == pytest.approx(cost(many, CAP, False, share, RULES) / 2)
    assert cost(one, CAP, False, share, two) == pytest.approx(cost(one, CAP, False, share, RULES))


def test_rows_that_all_reach_the_cap_stay_static():
    decision = decide(Scope(64, 64, 64, 256), curve_from(np.full(256, 64), 64), RULES)
    assert (decision.hand_over_at, decision.rest_to_vllm, decision.gain) == (64, False, 0)


def test_a_ragged_tail_is_handed_over_once_the_saving_pays_for_the_start():
    share = curve_from(ragged(2000))
    few, many = (decide(Scope(64, 64, CAP, rows), share, RULES) for rows in (32, 512))
    assert few.hand_over_at == CAP
    assert many.hand_over_at < 150
    assert not many.rest_to_vllm
    assert many.gain > 60
    started = Scope(64, 64, CAP, 32, start_share=0)
    assert decide(started, share, RULES).hand_over_at < 150


def test_rows_go_to_vllm_at_once_where_it_is_faster_from_the_first_token():
    quick = Rules(static=STATIC, vllm=VLLM.model_copy(update={"row_seconds": 0.001}))
    decision = decide(Scope(64, 64, CAP, 2048), curve_from(ragged(2000)), quick)
    assert decision.rest_to_vllm
    assert decision.seconds == pytest.approx(decision.all_vllm)


def test_a_small_saving_does_not_change_the_engine():
    share, scope = curve_from(ragged(2000)), Scope(64, 64, CAP, 512)
    free = decide(scope, share, RULES.model_copy(update={"least_gain": 0.0}))
    least = free.gain / free.all_static
    strict = decide(scope, share, RULES.model_copy(update={"least_gain": least * 1.01}))
    lax = decide(scope, share, RULES.model_copy(update={"least_gain": least * 0.99}))
    assert strict.hand_over_at == CAP
    assert lax.hand_over_at == free.hand_over_at < CAP


def best_fixed(lengths: np.ndarray, rules: Rules) -> float:
    """The cheapest common handover step, known only afterwards."""
    return min(replay(lengths, 64, CAP, rules, threshold=h).seconds for h in range(0, CAP + 1, 16))


@pytest.mark.parametrize("seed", range(3))
def test_with_an_earlier_curve_a_ragged_chunk_costs_about_what_the_best_step_would(seed):
    lengths = ragged(512, seed)
    earlier = Observed(CAP)
    earlier.add_lengths(Counter(ragged(1000, seed + 100)))
    chosen = replay(lengths, 64, CAP, RULES, earlier=earlier)
    assert chosen.seconds <= 1.08 * best_fixed(lengths, RULES)
    assert chosen.handed_over > 0


@pytest.mark.parametrize("seed", range(3))
def test_without_one_it_costs_little_more(seed):
    lengths = ragged(512, seed)
    assert replay(lengths, 64, CAP, RULES).seconds <= 1.25 * best_fixed(lengths, RULES)


@pytest.mark.parametrize("seed", range(3))
def test_a_first_run_that_has_to_assume_vllms_speed_stays_near_the_best(seed):
    static = StaticRates(
        batch=32, prefill_seconds=6.9, step_seconds=((64, 0.21), (576, 0.36)), lanes=2, source="test"
    )
    # As measured on the machine whose static steps these are; the policy is told neither.
    vllm = VllmRates(start_seconds=27, prefill_tokens_per_second=430, step_seconds=0.053, row_seconds=0.0034)
    rules, lengths = Rules(static=static, vllm=vllm), ragged(256, seed, sigma=1.35)
    first = replay(lengths, 64, CAP, rules, told=False)
    assert first.seconds <= 1.15 * best_fixed(lengths, rules)
    assert first.seconds <= 0.6 * replay(lengths, 64, CAP, rules, engine="static").seconds
    assert len(lengths) > first.handed_over > 200


def test_vllm_is_assumed_to_be_a_static_step_slower_for_its_weights_on_a_cpu():
    static = StaticRates(batch=32, prefill_seconds=4.0, step_seconds=((64, 0.2),), lanes=2, source="test")
    cpu, gpu = (VllmRates.assumed(static, device, prompt=64) for device in ("cpu", "cuda:1"))
    # Two lanes: 64 rows take 0.2 s, 32 rows half of that; vLLM adds half a step for the weights.
    assert cpu.step_seconds + 32 * cpu.row_seconds == pytest.approx(0.15)
    assert gpu.step_seconds + 32 * gpu.row_seconds == pytest.approx(0.1)
    assert cpu.prefill_tokens_per_second == pytest.approx(2 * 32 * 64 / 4)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    sigma=st.floats(0.0, 1.2),
    median=st.floats(8, 300),
    row=st.floats(0.001, 0.02),
    start=st.floats(0, 120),
    rows=st.integers(32, 256),
)
@example(seed=1, sigma=1.0, median=8.0, row=1 / 64, start=3.0, rows=34)
@example(seed=734, sigma=0.18, median=70.0, row=0.005, start=6.0, rows=40)
def test_auto_is_never_far_from_the_better_engine(seed, sigma, median, row, start, rows):
    """Over three chunks of the same kind: one alone may be unlucky in its rows."""
    vllm = VLLM.model_copy(update={"row_seconds": row, "start_seconds": start})
    rules = Rules(static=STATIC, vllm=vllm)
    earlier = Observed(CAP)
    earlier.add_lengths(Counter(ragged(1000, seed + 1000, median, sigma)))
    chunks = [ragged(rows, seed + i, median, sigma) for i in range(3)]

    def seconds(engine: str) -> float:
        return sum(replay(c, 64, CAP, rules, engine=engine, earlier=earlier).seconds for c in chunks)

    assert seconds("auto") <= 1.1 * min(seconds("static"), seconds("vllm")) + 3


def test_a_last_batch_with_few_rows_costs_a_batch():
    share = curve_from(np.full(64, 100))
    full, more = (cost(Scope(64, 64, CAP, rows), CAP, False, share, RULES) for rows in (32, 33))
    assert more == pytest.approx(2 * full, rel=0.01)


def test_a_job_can_insist_on_either_engine():
    lengths = ragged(128)
    assert replay(lengths, 64, CAP, RULES, engine="static").handed_over == 0
    assert replay(lengths, 64, CAP, RULES, engine="vllm").handed_over == 128


def run(policy: TailPolicy, lengths: np.ndarray, step_seconds: float) -> list[int]:
    """Batch 0 until it ends or hands over; its curve."""
    curve: list[int] = []
    while True:
        curve.append(int((lengths > len(curve) + 1).sum()))
        step = len(curve) - 1
        if policy.look(0, step, curve, 3.5 + step * step_seconds) or not curve[-1]:
            return curve


def test_without_rates_the_first_batch_is_run_and_its_own_steps_are_the_rates():
    policy = TailPolicy("auto", Scope(64, 64, CAP, 2048), 32, 2, "cpu", None, None, VLLM)
    assert policy.static_rates() is None
    assert policy.begin(0, 32)
    curve = run(policy, ragged(32, 3), 0.5)
    rates = policy.static_rates()
    assert rates is not None
    assert rates.prefill_seconds == 3.5
    assert all(seconds == pytest.approx(0.5) for _, seconds in rates.step_seconds)
    assert curve[-1] > 0  # 2,048 such rows are far cheaper with their tails in vLLM


def test_of_the_batches_under_way_it_is_known_how_many_rows_have_not_ended():
    policy = TailPolicy("static", Scope(64, 64, CAP, 512), 32, 2, "cpu", None, STATIC, VLLM)
    assert policy.active == (0, 0)
    policy.begin(0, 32)
    policy.begin(1, 16)
    assert policy.active == (48, 48)
    policy.look(0, 1, (32, 9), 1.0)
    assert policy.active == (25, 48)
    policy.end(0, (32, 9, 0))
    assert policy.active == (16, 16)


def test_a_chunks_decisions_are_kept_with_what_they_rest_on():
    earlier = Observed(CAP)
    earlier.add_lengths(Counter(ragged(1000, 7)))
    policy = TailPolicy("auto", Scope(64, 64, CAP, 512), 32, 1, "cpu", earlier, STATIC, VLLM)
    assert policy.begin(0, 32)
    curve = run(policy, ragged(32, 3), 0.13)
    policy.end(0, curve)
    assert policy.scope.waiting == (Waiting(len(curve), curve[-1]),)
    last = policy.decisions[-1]
    assert last.hand_over_at <= last.step == len(curve) - 1
    assert last.active == curve[-1]
    assert last.rows_to_come == 480
    assert last.seconds < last.all_static
    assert last.model_validate_json(last.model_dump_json()) == last


def test_both_parts_of_a_step_are_told_apart_where_no_row_ends_before_the_last():
    rng = np.random.default_rng(0)
    rows = [1] * 8 + [64] * 200
    steps = [
        VllmStep(seconds=0.05 + 0.0034 * n + rng.exponential(0.001), rows=n, prefilled=0, waiting=0)
        for n in rows
    ]
    rates = fit_rates(steps, 1.0)
    assert rates is not None
    assert rates.step_seconds == pytest.approx(0.05, rel=0.1)
    assert rates.row_seconds == pytest.approx(0.0034, rel=0.1)


def test_rates_are_recovered_from_the_steps_they_explain():
    rng = np.random.default_rng(0)
    steps = [VllmStep(seconds=0.05 + 0.004 * 40 + 2000 / 500, rows=40, prefilled=2000, waiting=0)]
    for rows in range(40, 4, -1):
        steps += [
            VllmStep(seconds=0.05 + 0.004 * rows + rng.exponential(0.0005), rows=rows, prefilled=0, waiting=0)
        ]
    steps.append(VllmStep(seconds=3.0, rows=20, prefilled=0, waiting=0))  # somebody else's doing
    rates = fit_rates(steps, 42.0)
    assert rates is not None
    assert rates.start_seconds == 42
    assert rates.step_seconds == pytest.approx(0.05, rel=0.1)
    assert rates.row_seconds == pytest.approx(0.004, rel=0.1)
    assert rates.prefill_tokens_per_second == pytest.approx(500, rel=0.05)
    assert fit_rates(steps[:4], 1.0) is None
