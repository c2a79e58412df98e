"""Static or continuous batching: what the rest of a chunk would cost either way, at measured rates.

Two numbers make a plan: the step at which batches hand their tail over (the cap: never), and whether
rows not begun go to vLLM at once. `decide` prices every plan for the batches under way, the rows to come
and the tails that wait already, and takes the cheapest. Pure: everything it knows is in its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from staticjob.generating.decode_rates import StaticRates, VllmRates
from staticjob.records.record import Record

# Handover steps that are priced: more of them differ by less than the forecast's error.
CANDIDATES = 24
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Running:
    """A batch under way: `step` decode passes done (so step + 1 tokens a row), `active` rows go on."""

    step: int
    active: int


@dataclass(frozen=True)
class Waiting:
    """Rows already handed over, with `tokens` generated each."""

    tokens: int
    rows: int


@dataclass(frozen=True)
class Scope:
    """What is left of a chunk: batches of one rectangle."""

    prompt: int  # the rectangle's length
    mean_prompt: float  # tokens of a prompt
    cap: int
    rows_to_come: int  # in batches not begun
    running: tuple[Running, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    start_share: float = 1.0  # of vLLM's start-up, which a process's chunks share; 0 once it is due anyhow

    def batches_to_come(self, size: int) -> tuple[tuple[int, int], ...]:
        """(rows, how many such batches): the full ones, and the last with what is left."""
        full, rest = divmod(self.rows_to_come, size)
        return tuple((rows, count) for rows, count in ((size, full), (rest, 1)) if rows and count)


class Rules(Record):
    """How to decide: rates, and the least saving worth a change of engine."""

    static: StaticRates
    vllm: VllmRates
    least_gain: float = Field(default=0.05, ge=0, lt=1, description="share of what is left")


class Decision(Record):
    """A plan for what is left, with what it rests on; seconds are forecasts."""

    hand_over_at: int = Field(description="decode step at which batches hand their tail over; the cap: never")
    rest_to_vllm: bool = Field(description="rows not begun go to vLLM at once")
    seconds: float = Field(description="of this plan")
    all_static: float = Field(description="of running everything left statically to its end")
    all_vllm: float = Field(description="of sending everything left to vLLM now")
    step: int = Field(default=0, description="decode passes of the batch that was looked at")
    active: int = Field(default=0, description="its rows that go on")
    rows_to_come: int

    cap: int = Field(default=0, description="tokens a row may generate")

    @property
    def words(self) -> str:
        """The plan, for people."""
        if self.rest_to_vllm and self.hand_over_at < self.cap:
            return f"rows not begun to vLLM, the others at step {self.hand_over_at}"
        if self.rest_to_vllm:
            return "rows not begun to vLLM"
        if self.hand_over_at < self.cap:
            return f"hand over at step {self.hand_over_at}"
        return "static to the end"

    @property
    def gain(self) -> float:
        """Seconds saved over all-static."""
        return self.all_static - self.seconds


def decide(scope: Scope, share: Array, rules: Rules, looked_at: Running | None = None) -> Decision:
    """The cheapest plan; all-static unless another saves least_gain of it.

    `share` [cap + 1] is survival's: rows that generate more than n tokens.
    """
    first = min((batch.step for batch in scope.running), default=1)
    steps = np.unique(np.linspace(min(first, scope.cap), scope.cap, CANDIDATES).astype(int))
    rests = (False, True) if scope.rows_to_come else (False,)
    prices = {rest: costs(scope, steps, rest, share, rules) for rest in rests}
    all_static = float(prices[False][-1])
    seconds, rest = min((float(prices[rest].min()), rest) for rest in rests)
    hand_over_at = int(steps[prices[rest].argmin()])
    if seconds > all_static * (1 - rules.least_gain):
        seconds, rest, hand_over_at = all_static, False, scope.cap
    return Decision(
        hand_over_at=hand_over_at,
        rest_to_vllm=rest,
        seconds=seconds,
        all_static=all_static,
        all_vllm=float(costs(scope, np.zeros(1, int), True, share, rules)[0]),
        step=looked_at.step if looked_at else 0,
        active=looked_at.active if looked_at else 0,
        rows_to_come=scope.rows_to_come,
        cap=scope.cap,
    )


def costs(scope: Scope, thresholds: NDArray[np.int64], rest: bool, share: Array, rules: Rules) -> Array:
    """Forecast seconds [H] for all that is left when batches hand over at each of `thresholds` [H].

    `rest`: rows not begun go to vLLM at once, as they do at threshold 0.
    """
    static, pools = rules.static, _Pools(len(thresholds), scope.cap)
    seconds, batches = np.zeros(len(thresholds)), float(len(scope.running))
    for batch in scope.running:
        alive = _given(share, batch.step + 1) * batch.active  # after batch.step + 1 + i tokens
        more = np.maximum(0, thresholds - batch.step)
        seconds += _steps(scope, batch.step, alive, batch.active, static)[more]
        pools.join(alive, more, scope.mean_prompt + batch.step + 1)
    if rest:
        pools.join(share * scope.rows_to_come, np.zeros_like(thresholds), scope.mean_prompt)
    elif scope.rows_to_come:
        for rows, count in scope.batches_to_come(static.batch):
            one = static.prefill_seconds + _steps(scope, 0, share[1:] * rows, rows, static)[thresholds]
            seconds += count * one
            batches += count
        pools.join(share[1:] * scope.rows_to_come, thresholds, scope.mean_prompt + 1)
    for tail in scope.waiting:
        alive = _given(share, tail.tokens) * tail.rows
        pools.join(alive, np.zeros_like(thresholds), scope.mean_prompt + tail.tokens)
    parallel = min(static.lanes, max(1.0, batches))
    return seconds / parallel + pools.seconds(rules.vllm, scope.start_share)


def _given(share: Array, tokens: int) -> Array:
    """Share of rows going on after `tokens` + i tokens, of those that went on after `tokens`."""
    rest: Array = share[tokens:].copy()
    if rest[0] > 0:
        rest /= rest[0]
        return rest
    # Rows live on that by all that was seen should not: nothing is known but the cap.
    rest[:-1] = 1.0
    return rest


def _steps(scope: Scope, first: int, alive: Array, rows: int, static: StaticRates) -> Array:
    """Seconds of the first k steps after `first`, k = 0 … len(alive); alive[i] rows begin step first + i.

    A step is run while any row lives: 1 - (1 - share)^rows of the time, taking rows as independent.
    """
    any_row = 1 - (1 - np.clip(alive / rows, 0, 1)) ** rows
    slots = scope.prompt + first + 1 + np.arange(len(alive))
    return np.concatenate(([0.0], np.cumsum(static.step(slots) * any_row)))


class _Pools:
    """For each threshold, the rows vLLM is to finish: rows[h, i] of them need an (i + 1)-th token."""

    def __init__(self, thresholds: int, cap: int) -> None:
        self._rows = np.zeros((thresholds, cap + 1))
        self._prefill = np.zeros(thresholds)

    def join(self, alive: Array, skipped: NDArray[np.int64], tokens: float) -> None:
        """Rows of which alive[i] go on after i more tokens, handed over after skipped[h] of those."""
        for h, skip in enumerate(skipped):
            left = alive[skip:]
            self._rows[h, : len(left)] += left
            if len(left):
                self._prefill[h] += left[0] * (tokens + skip)

    def seconds(self, vllm: VllmRates, start_share: float) -> Array:
        """Start-up where any row is to be expected, prefill, and steps while any row lives."""
        total = self._rows.sum(axis=1)
        some = 1 - np.exp(-self._rows)
        steps = np.maximum(some.sum(axis=1), total / vllm.max_rows)
        start = start_share * vllm.start_seconds * some[:, 0]
        prefill = self._prefill / vllm.prefill_tokens_per_second
        seconds: Array = start + prefill + steps * vllm.step_seconds + total * vllm.row_seconds
        return seconds
