"""Tables of generation.py: speed, useful share of the slots, memory traffic, and what the policy chose."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from replay import replay, survivors
from workloads import Workload

from staticjob.generating.decode_rates import StaticRates, VllmRates
from staticjob.generating.policy import Rules
from staticjob.generating.survival import Observed
from staticjob.models.dimensions import Dimensions
from staticjob.models.model_files import model_config

# End to end and in decode steps alone, over each program with the same batch.
WANTED: dict[str, tuple[float, float | None]] = {
    "hugging-face": (1.5, 1.8),
    "vllm": (1.5, None),
    "vllm-default": (1.5, None),
}
FLOAT32 = 4


@dataclass
class Passes:
    """What one program did on the uniform workload."""

    seconds: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    core_seconds: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)  # cores that other programs of the machine kept busy


def uniform_table(work: Workload, passes: dict[str, Passes], copy: float) -> list[str]:
    tokens, own = sum(work.limits), passes["staticjob"]
    decoded = tokens - len(work.prompts)
    lines = [
        "| | tokens/s | decoded/s | core-seconds | bandwidth, of a copy's | others' cores | staticjob is "
        "| in decode |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, done in passes.items():
        decode = statistics.median(done.decode) if done.decode else None
        moved = decode_bytes(work) / decode / copy if decode else None
        cells = [
            name,
            f"{tokens / statistics.median(done.seconds):.0f}",
            f"{decoded / decode:.0f}" if decode else "–",
            f"{statistics.median(done.core_seconds):.1f}",
            f"{moved:.0%}" if moved else "–",
            f"{statistics.median(done.others):.1f}",
            "" if done is own else f"**{_ratio(own.seconds, done.seconds):.2f}×** faster",
            "" if done is own or not decode else f"**{_ratio(own.decode, done.decode):.2f}×** faster",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _ratio(own: list[float], other: list[float]) -> float:
    return statistics.median(b / a for a, b in zip(own, other, strict=True))


def decode_bytes(work: Workload) -> float:
    """Least bytes that the uniform workload's decoding moves: weights once a step, live caches once."""
    steps = max(work.limits) - 1
    curves = [
        {"active": [len(batch.keys)] * steps, "rows": len(batch.keys), "prompt": batch.shape.length}
        for batch in work.batches()
    ]
    return sum(traffic(work, curve)[0] for curve in curves)


def traffic(work: Workload, curve: dict[str, Any]) -> tuple[float, float]:
    """Bytes that one batch's steps must move, for rows that lived and for rows that had ended."""
    sizes = Dimensions.of(model_config(work.model))
    weights = (sizes.linear_parameters + sizes.vocabulary * sizes.hidden) * FLOAT32
    active = np.array(curve["active"], float)
    slots = curve["prompt"] + 1 + np.arange(len(active))
    token = sizes.cache_bytes(1, 1, FLOAT32)
    live = weights * len(active) + float((active * slots).sum()) * token
    return live, float(((work.batch - active) * slots).sum()) * token


def whole_table(work: Workload, results: dict[str, dict[str, Any]], copy: float) -> list[str]:
    """One line per way to run the workload, and what each would have cost on paper."""
    static, vllm = (results[name]["seconds"]["all"] for name in ("all static", "all vLLM"))
    lines = [
        "| | seconds | tokens/s | useful decode slots | bandwidth: live, ended rows | rows to vLLM "
        "| others' cores | than all static | than all vLLM |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, result in results.items():
        seconds, curves = result["seconds"]["all"], result["curves"]
        slots = sum(len(curve["active"]) for curve in curves) * work.batch
        useful = sum(sum(curve["active"]) for curve in curves)
        cells = [
            name,
            f"{seconds:.0f}",
            f"{sum(result['lengths']) / seconds:.0f}",
            f"{useful / slots:.0%}" if slots else "–",
            _bandwidth(work, result, copy),
            str(result["tails"]),
            f"{result['others']:.1f}",
            f"{static / seconds:.2f}× as fast",
            f"{vllm / seconds:.2f}×",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", *_on_paper(work, results), "", *_decisions(results)]


def _bandwidth(work: Workload, result: dict[str, Any], copy: float) -> str:
    """Shares of a copy's speed, over the time of the static steps; lanes run at once."""
    moved = [traffic(work, curve) for curve in result["curves"]]
    seconds = sum(curve["seconds"] for curve in result["curves"])
    if not seconds:
        return "–"
    lanes = result["static_rates"][0]["rates"]["lanes"]
    live, ended = (sum(column) * lanes / seconds / copy for column in zip(*moved, strict=True))
    return f"{live:.0%}, {ended:.0%}"


def _on_paper(work: Workload, results: dict[str, dict[str, Any]]) -> list[str]:
    """The rule against hindsight: the workload as one chunk, at the rates measured in these runs."""
    rates = Rules(
        static=StaticRates(**results["all static"]["static_rates"][0]["rates"]),
        vllm=VllmRates(**results["all vLLM"]["vllm_rates"]),
    )
    batches, by_row = work.batches(), results["all static"]["lengths"]
    lengths = np.array([by_row[key.row] for batch in batches for key in batch.keys])
    prompt, mean = batches[0].shape.length, sum(map(len, work.prompts)) / len(work.prompts)
    steps = [int(h) for h in np.unique(np.linspace(0, work.cap, 33))]
    costs = {
        h: replay(lengths, prompt, work.cap, rates, threshold=h, mean_prompt=mean).seconds for h in steps
    }
    best = min(costs, key=lambda h: costs[h])
    seen = Observed(work.cap)
    seen.add_lengths(Counter(lengths))
    first = replay(lengths, prompt, work.cap, rates, told=False, mean_prompt=mean).seconds
    later = replay(lengths, prompt, work.cap, rates, earlier=seen, mean_prompt=mean).seconds
    done = np.flatnonzero(np.array(survivors(lengths)) <= len(lengths) / 2)
    half = f"Half of the rows were done at step {done[0]}." if len(done) else "Most rows reached the cap."
    return [
        f"{half} On paper, at these rates and without start-up of the static engine: all static "
        f"{costs[work.cap]:.0f} s, all vLLM {costs[0]:.0f} s, the best common "
        f"handover step {best} ({costs[best]:.0f} s). To that the rule loses {first - costs[best]:.0f} s "
        f"in a first run and {later - costs[best]:.0f} s in a later one; the other choice, the worse engine "
        f"alone, {max(costs[0], costs[work.cap]) - costs[best]:.0f} s.",
    ]


def _decisions(results: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"- {name}, step {d['step']}, {d['active']} rows active, {d['rows_to_come']} to come: hand over at "
        f"{d['hand_over_at']}{', the rest to vLLM' if d['rest_to_vllm'] else ''}; forecast "
        f"{d['seconds']:.0f} s for the rest (all static {d['all_static']:.0f}, all vLLM {d['all_vllm']:.0f})"
        for name, result in results.items()
        for d in result["decisions"]
    ]


def uniform_misses(passes: dict[str, Passes]) -> list[str]:
    """Each figure of WANTED that was not reached."""
    own, found = passes["staticjob"], []
    for name, (whole, decode) in WANTED.items():
        if name not in passes:
            continue
        found += _missed(_ratio(own.seconds, passes[name].seconds), whole, name)
        if decode:
            found += _missed(_ratio(own.decode, passes[name].decode), decode, f"{name} in decode")
    return ["", *found] if found else []


def whole_misses(workload: str, results: dict[str, dict[str, Any]]) -> list[str]:
    """Each figure that `auto` did not reach."""
    static, vllm, first, later = (result["seconds"]["all"] for result in results.values())
    if workload == "mild":
        better = min(static, vllm)
        found = _missed(better / first, 0.95, "the better engine in a first run")
        found += _missed(better / later, 0.95, "the better engine in a later run")
    else:
        found = _missed(vllm / first, 0.8, "all vLLM in a first run")
        found += _missed(vllm / later, 0.95, "all vLLM in a later run")
        found += _missed(static / first, 2.0, "all static in a first run")
        found += _missed(static / later, 2.0, "all static in a later run")
    return ["", *found] if found else []


def _missed(ratio: float, wanted: float, over: str) -> list[str]:
    return [f"MISSED: {ratio:.2f}× {over}, wanted {wanted}×"] if ratio < wanted else []
