"""A chunk's recorded lengths run again on paper: what any choice would have cost at given rates.

The same prices as the policy's, but over the lengths that rows turned out to have: a batch steps until
its longest row ends, and vLLM's pool shrinks as its rows do.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from staticjob.generating.decode_rates import VllmRates
from staticjob.generating.policy import Rules, Scope
from staticjob.generating.survival import Observed
from staticjob.generating.tail_policy import Engine, TailPolicy

Lengths = NDArray[np.int64]


@dataclass
class Replayed:
    """What a replay cost and did."""

    seconds: float = 0.0
    slots: int = 0  # decode slots computed
    useful: int = 0  # of them for rows that were active
    prefill: list[float] = field(default_factory=list)  # per row that vLLM ran: tokens it began with
    remaining: list[int] = field(default_factory=list)  # and tokens it generated

    @property
    def handed_over(self) -> int:
        return len(self.remaining)


def replay(
    lengths: Lengths,
    prompt: int,
    cap: int,
    rules: Rules,
    engine: Engine = "auto",
    earlier: Observed | None = None,
    threshold: int | None = None,
    *,
    device: str = "cpu",
    told: bool = True,
    mean_prompt: float | None = None,
) -> Replayed:
    """Run a chunk whose rows, in order, generate `lengths` tokens each after prompts of `prompt` tokens.

    Prompts padded to `prompt` have `mean_prompt` tokens, which is what vLLM computes.
    With `threshold` every batch hands over at that step whatever the policy says (0: all to vLLM). A
    policy that is not `told` the rates times the static engine's itself and assumes vLLM's for `device`.
    """
    lengths, mean = np.minimum(lengths, cap), float(mean_prompt or prompt)
    policy = TailPolicy(
        engine if threshold is None else "vllm" if threshold == 0 else "static",
        Scope(prompt, mean, cap, len(lengths)),
        rules.static.batch,
        rules.static.lanes,
        device,
        earlier,
        rules.static if told else None,
        rules.vllm if told else None,
        rules.least_gain,
    )
    size, result = rules.static.batch, Replayed()
    waiting = [lengths[i : i + size] for i in range(0, len(lengths), size)]
    count = len(waiting)
    lanes: list[tuple[float, int, Generator[float]]] = [
        (0.0, lane, _idle()) for lane in range(rules.static.lanes)
    ]
    while lanes:
        now, lane, work = heapq.heappop(lanes)
        seconds = next(work, None)
        if seconds is None:
            result.seconds = max(result.seconds, now)
            if not waiting:
                continue
            index = count - len(waiting)
            if not policy.begin(index, len(waiting[0])):
                for rows in waiting:
                    _hand_over(result, rows, mean, 0)
                waiting = []
                continue
            work, seconds = _batch(result, policy, index, waiting.pop(0), rules, threshold), 0.0
        heapq.heappush(lanes, (now + seconds, lane, work))
    result.seconds += _pool_seconds(result, rules.vllm)
    return result


def survivors(lengths: Lengths) -> tuple[int, ...]:
    """Rows active at each step when row b generates lengths[b] tokens: what a batch run to its end shows."""
    passes = np.sort(lengths) - 1
    steps = np.arange(max(0, int(passes[-1])) if len(passes) else 0)
    return tuple((len(passes) - np.searchsorted(passes, steps, side="right")).tolist())


def _idle() -> Generator[float]:
    yield from ()


def _batch(
    result: Replayed,
    policy: TailPolicy,
    index: int,
    lengths: Lengths,
    rules: Rules,
    threshold: int | None,
) -> Generator[float]:
    """One batch: yields the seconds of its prefill and of every step."""
    seconds = rules.static.prefill_seconds
    yield seconds
    curve: list[int] = []
    while True:
        step = len(curve)
        curve.append(int((lengths > step + 1).sum()))
        if not curve[-1] or step == threshold or policy.look(index, step, curve, seconds):
            break
        each = float(rules.static.step(np.array([policy.scope.prompt + step + 1]))[0])
        seconds += each
        yield each
        result.slots += rules.static.batch
        result.useful += curve[-1]
    policy.end(index, curve)
    _hand_over(result, lengths[lengths > len(curve)], policy.scope.mean_prompt, len(curve))


def _hand_over(result: Replayed, lengths: Lengths, prompt: float, tokens: int) -> None:
    result.prefill += [prompt + tokens] * len(lengths)
    result.remaining += (lengths - tokens).tolist()


def _pool_seconds(result: Replayed, vllm: VllmRates) -> float:
    """Continuous batching of all rows handed over, all of them there from the start."""
    if not result.remaining:
        return 0.0
    remaining = np.sort(np.array(result.remaining))
    active = len(remaining) - np.searchsorted(remaining, np.arange(remaining[-1]), side="right")
    steps = max(len(active), float(active.sum()) / vllm.max_rows)
    prefill = sum(result.prefill) / vllm.prefill_tokens_per_second
    return float(vllm.start_seconds + prefill + steps * vllm.step_seconds + active.sum() * vllm.row_seconds)
