"""What would the rule choose elsewhere? Recorded lengths replayed at the speeds of machines not at hand.

    python benchmarks/simulate.py [--rates FILE.json] [--rows N]

Nothing is generated: rows get the lengths that `generation.py` recorded in lengths.json, drawn again to
N rows, and the policy decides over them at speeds that are inputs, not measurements. FILE holds
{name: {"static": StaticRates, "vllm": VllmRates}}; without one, three GPU-like machines are taken. The
table, labelled simulated, is written to RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
from replay import replay
from results import write_section

from staticjob.generating.decode_rates import StaticRates, VllmRates
from staticjob.generating.policy import Rules
from staticjob.generating.survival import Observed

HERE = Path(__file__).resolve().parent
LENGTHS = HERE / "lengths.json"
STEPS = 33  # handover steps tried for the best fixed one


def gpu_like(
    batch: int, step: float, slot: float, base: float, row: float, prefill: float, start: float
) -> Rules:
    """Milliseconds of a static step, of it per 1,000 cache slots, and of vLLM's base and row; tokens/s; s."""
    slots = (128, 2048)
    steps = tuple((n, (step + slot * n / 1000) / 1000) for n in slots)
    static = StaticRates(
        batch=batch, prefill_seconds=batch * 128 / prefill, step_seconds=steps, source="simulated"
    )
    vllm = VllmRates(
        start_seconds=start,
        prefill_tokens_per_second=prefill,
        step_seconds=base / 1000,
        row_seconds=row / 1000,
        source="simulated",
    )
    return Rules(static=static, vllm=vllm)


# A large model, whose steps are the reading of its weights; a small one, whose steps are launches that a
# captured graph saves; and a fast start, as of a server that is kept warm.
MACHINES = {
    "large model": gpu_like(64, step=14, slot=2, base=16, row=0.06, prefill=12_000, start=90),
    "small model": gpu_like(128, step=2.2, slot=0.8, base=5, row=0.02, prefill=150_000, start=60),
    "small model, warm vLLM": gpu_like(128, step=2.2, slot=0.8, base=5, row=0.02, prefill=150_000, start=5),
}


def simulated(name: str, rules: Rules, workload: str, rows: int) -> str:
    """One line of the table."""
    recorded = json.loads(LENGTHS.read_text())[workload]
    prompt, cap = recorded["prompt"], recorded["cap"]
    lengths = np.random.default_rng(0).choice(recorded["lengths"], rows)
    before = Observed(cap)
    before.add_lengths(Counter(recorded["lengths"]))
    fixed = {
        int(h): replay(lengths, prompt, cap, rules, threshold=int(h)).seconds
        for h in np.unique(np.linspace(0, cap, STEPS))
    }
    best = min(fixed, key=lambda h: fixed[h])
    first = replay(lengths, prompt, cap, rules, device="cuda", told=False)
    later = replay(lengths, prompt, cap, rules, device="cuda", earlier=before)
    chosen = [
        f"{run.seconds:.0f} ({run.seconds / fixed[best] - 1:+.0%}; {run.handed_over / rows:.0%} of rows)"
        for run in (first, later)
    ]
    cells = [name, workload, f"{fixed[cap]:.0f}", f"{fixed[0]:.0f}", f"{fixed[best]:.0f} at {best}", *chosen]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rates", type=Path, help="speeds of other machines")
    parser.add_argument("--rows", type=int, default=4096, help="rows of the simulated chunk [4096]")
    arguments = parser.parse_args()
    machines = MACHINES
    if arguments.rates:
        given = json.loads(arguments.rates.read_text())
        machines = {name: Rules.model_validate(rates) for name, rates in given.items()}
    lines = [
        f"Simulated: no such machine was used, all speeds are inputs. {arguments.rows:,} rows with lengths "
        "drawn from those recorded in lengths.json; seconds without the static engine's start. Best fixed "
        "step: 0 is all vLLM, the cap all static. In brackets: lost to it, and rows that vLLM got.",
        "",
        "| machine | workload | all static | all vLLM | best fixed step | rule, first run | rule, later |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, rules in machines.items():
        lines += [simulated(name, rules, workload, arguments.rows) for workload in ("mild", "ragged")]
    lines += ["", *(f"- {name}: {_speeds(rules)}" for name, rules in machines.items())]
    print("\n".join(lines))
    write_section(HERE / "RESULTS.md", "Simulated machines", "\n".join(lines))


def _speeds(rules: Rules) -> str:
    static, vllm = rules.static, rules.vllm
    steps = ", ".join(f"{1000 * seconds:.1f} ms over {slots} slots" for slots, seconds in static.step_seconds)
    return (
        f"static step of {static.batch} rows {steps}; vLLM {1000 * vllm.step_seconds:.1f} ms + "
        f"{1000 * vllm.row_seconds:.2f} ms a row, {vllm.prefill_tokens_per_second:,.0f} prompt tokens/s, "
        f"ready after {vllm.start_seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
