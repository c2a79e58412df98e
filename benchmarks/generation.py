"""How fast are texts? This engine beside Hugging Face and vLLM, and the policy beside either engine alone.

    python benchmarks/generation.py [--workloads uniform mild ragged] [--programs …] [--rounds N] [--rows N]

`uniform`: every program generates the same tokens, models loaded before, rounds interleaved. `mild` and
`ragged`: whole runs in fresh processes, start-ups included: all static, all vLLM, and as the policy
decides, without and with the lengths and rates of an earlier run; of the rounds, the run of median time
is shown. SmolLM2-135M, float32, all cores. Results are written to RESULTS.md beside this file, a section
per workload, and the lengths of the rows to lengths.json for simulate.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from generation_tables import Passes, uniform_misses, uniform_table, whole_misses, whole_table
from generators import CORES, GENERATORS
from process import Process
from results import machine, versions, write_section
from workloads import Workload, mild, ragged, uniform

HERE = Path(__file__).resolve().parent


def compare_uniform(work: Workload, programs: list[str], rounds: int, scratch: Path) -> dict[str, Passes]:
    """Programs interleaved; how far their texts agree is printed."""
    path = scratch / "uniform.json"
    work.write(path)
    processes: list[Process] = []
    passes = {name: Passes() for name in programs}
    try:
        for name in programs:
            processes.append(Process("generators.py", name, path, scratch / f"{name}.log"))
        for process in processes:
            print(f"  {process.name}: ready in {process.ready():.1f} s (not counted)", flush=True)
        for number in range(rounds):
            reference = None
            for process in processes:
                answer = process.run()
                reference = reference or answer["tokens"]
                assert all(len(text) == work.cap for text in answer["tokens"])
                same = sum(a == b for a, b in zip(answer["tokens"], reference, strict=True))
                done = passes[process.name]
                done.seconds.append(answer["seconds"])
                done.core_seconds.append(answer["core_seconds"])
                done.others.append(answer["others"])
                if "decode_seconds" in answer:
                    done.decode.append(answer["decode_seconds"])
                print(
                    f"  round {number + 1}: {process.name}: {answer['seconds']:.1f} s "
                    f"(others on {answer['others']:.1f} cores), "
                    f"{same} of {len(reference)} texts equal staticjob's",
                    flush=True,
                )
    finally:
        for process in processes:
            process.quit()
    return passes


def whole_run(engine: str, work: Path, earlier: Path | None, scratch: Path) -> dict[str, Any]:
    """One run of chunk_run.py in a fresh process."""
    command = [sys.executable, str(HERE / "chunk_run.py"), engine, str(work)]
    command += ["--earlier", str(earlier)] if earlier else []
    log = scratch / "chunk_run.log"
    with log.open("wb") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed; its last lines:\n{log.read_text()[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def compare_whole(work: Workload, rounds: int, scratch: Path) -> dict[str, dict[str, Any]]:
    """Four ways to run a workload, the last with the lengths and rates that the first two measured."""
    path, before = scratch / "work.json", scratch / "before.json"
    work.write(path)
    engines = {
        "all static": "static",
        "all vLLM": "vllm",
        "auto, first run": "auto",
        "auto, later run": "auto",
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            if name == "auto, later run":
                before.write_text(json.dumps(_record(runs["all static"][-1], runs["all vLLM"][-1])))
            earlier = before if name == "auto, later run" else None
            runs[name].append(whole_run(engine, path, earlier, scratch))
            print(f"  {name}: {_seconds(runs[name][-1])}", flush=True)
    return {
        name: sorted(done, key=lambda run: run["seconds"]["all"])[rounds // 2] for name, done in runs.items()
    }


def _record(static: dict[str, Any], vllm: dict[str, Any]) -> dict[str, Any]:
    """What an earlier run leaves: lengths as the model gave them, rates as either engine alone had them."""
    return {
        "lengths": vllm["lengths"],
        "static_rates": static["static_rates"],
        "vllm_rates": vllm["vllm_rates"],
    }


def _seconds(run: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in run["seconds"].items())
    return f"{parts} s (others on {run['others']:.1f} cores), {run['tails']} rows to vLLM"


def keep_lengths(work: Workload, lengths: list[int]) -> None:
    """Put a workload's lengths into lengths.json, in place of those that were there."""
    path = HERE / "lengths.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    prompt = round(sum(map(len, work.prompts)) / len(work.prompts))
    kept[work.name] = {"prompt": prompt, "cap": work.cap, "lengths": lengths}
    path.write_text(json.dumps(kept, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--workloads", nargs="+", choices=["uniform", "mild", "ragged"], default=["uniform", "mild", "ragged"]
    )
    parser.add_argument(
        "--programs", nargs="+", choices=[*GENERATORS], default=[*GENERATORS], help="of uniform"
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved passes or runs of each [3]")
    parser.add_argument("--rows", type=int, default=256, help="rows of mild and ragged [256]")
    arguments = parser.parse_args()
    from staticjob.engine.calibrate import ceilings

    copy = ceilings("cpu").bytes_per_second
    head = [
        f"{machine()}, {CORES} threads; a copy moves {copy / 1e9:.1f} GB/s. {versions()}.",
        f"SmolLM2-135M-Instruct, float32; token ids to token ids; medians of {arguments.rounds} rounds.",
    ]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name in arguments.workloads:
            print(name, flush=True)
            if name == "uniform":
                work = uniform()
                passes = compare_uniform(work, arguments.programs, arguments.rounds, scratch)
                title = f"{len(work.prompts)} prompts of 64 tokens, 64 out, no end, B = 32."
                lines = uniform_table(work, passes, copy) + uniform_misses(passes)
            else:
                work = mild(arguments.rows) if name == "mild" else ragged(arguments.rows)
                results = compare_whole(work, arguments.rounds, scratch)
                keep_lengths(work, results["all vLLM"]["lengths"])
                title = (
                    f"{len(work.prompts)} rows, at most {work.cap} tokens, B = {work.batch}, with start-ups."
                )
                lines = whole_table(work, results, copy) + whole_misses(name, results)
            body = [*head, title, "", *lines]
            print("\n".join(body), flush=True)
            write_section(HERE / "RESULTS.md", f"Generation: {name}", "\n".join(body))


if __name__ == "__main__":
    main()
