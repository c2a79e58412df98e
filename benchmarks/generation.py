"""How fast are texts? This engine beside Hugging Face and vLLM, and the policy beside either engine alone.

    python benchmarks/generation.py [--workloads uniform mild ragged] [--rounds N] [--rows N]

`uniform`: every program generates the same tokens, models loaded before, rounds interleaved. `mild` and
`ragged`: whole runs in fresh processes, start-ups included: all static, all vLLM, and as the policy
decides, without and with the lengths and rates of an earlier run. SmolLM2-135M, float32, all cores.
Results are written to RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from generation_tables import Passes, misses, uniform_table, whole_table
from generators import CORES, GENERATORS
from results import machine, versions, write_section
from workloads import Workload, mild, ragged, uniform

HERE = Path(__file__).resolve().parent


class Process:
    """A program of generators.py, waiting for its next pass."""

    def __init__(self, name: str, work: Path, log: Path) -> None:
        self.name, self._log = name, log
        command = [sys.executable, str(HERE / "generators.py"), name, str(work)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.start_seconds = self._answer()["start_seconds"]

    def generate(self) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write("pass\n")
        self._process.stdin.flush()
        return self._answer()

    def quit(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended early; its last lines:\n{self._log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def compare_uniform(work: Workload, rounds: int, scratch: Path) -> dict[str, Passes]:
    """All programs, interleaved; how far their texts agree is printed."""
    path = scratch / "uniform.json"
    work.write(path)
    processes: list[Process] = []
    passes = {name: Passes() for name in GENERATORS}
    try:
        for name in GENERATORS:
            processes.append(Process(name, path, scratch / f"{name}.log"))
            print(f"  {name}: ready in {processes[-1].start_seconds:.1f} s (not counted)", flush=True)
        for number in range(rounds):
            reference = None
            for process in processes:
                answer = process.generate()
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


def compare_whole(work: Workload, scratch: Path, copy: float) -> list[str]:
    """Four ways to run a workload, the last with the lengths and rates that the first two measured."""
    path, before = scratch / "work.json", scratch / "before.json"
    work.write(path)
    results: dict[str, dict[str, Any]] = {}
    for name, engine in (("all static", "static"), ("all vLLM", "vllm"), ("auto, first run", "auto")):
        results[name] = whole_run(engine, path, None, scratch)
        print(f"  {name}: {results[name]['seconds']}", flush=True)
    # Rates as measured by either engine alone, lengths as the model gave them: an earlier run's record.
    before.write_text(
        json.dumps(
            {
                "lengths": results["all vLLM"]["lengths"],
                "static_rates": results["all static"]["static_rates"],
                "vllm_rates": results["all vLLM"]["vllm_rates"],
            }
        )
    )
    results["auto, later run"] = whole_run("auto", path, before, scratch)
    print(f"  auto, later run: {results['auto, later run']['seconds']}", flush=True)
    return whole_table(work, results, copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--workloads", nargs="+", choices=["uniform", "mild", "ragged"], default=["uniform", "mild", "ragged"]
    )
    parser.add_argument("--rounds", type=int, default=3, help="passes of each program on uniform [3]")
    parser.add_argument("--rows", type=int, default=256, help="rows of mild and ragged [256]")
    arguments = parser.parse_args()
    from staticjob.engine.calibrate import ceilings

    copy = ceilings("cpu").bytes_per_second
    body = [
        f"{machine()}, {CORES} threads; a copy moves {copy / 1e9:.1f} GB/s. {versions()}.",
        "SmolLM2-135M-Instruct, float32; token ids to token ids.",
    ]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name in arguments.workloads:
            print(name, flush=True)
            if name == "uniform":
                work = uniform()
                passes = compare_uniform(work, arguments.rounds, scratch)
                lines = uniform_table(work, passes, copy)
                title = f"uniform: {len(work.prompts)} prompts of 64 tokens, 64 out, no end, B = 32"
                lines += misses(passes)
            else:
                work = mild(arguments.rows) if name == "mild" else ragged(arguments.rows)
                title = (
                    f"{name}: {len(work.prompts)} rows, at most {work.cap} tokens, B = 32, start-ups included"
                )
                lines = compare_whole(work, scratch, copy)
            body += ["", f"### {title}", "", *lines]
            print("\n".join(lines), flush=True)
            write_section(HERE / "RESULTS.md", "Generation", "\n".join(body))


if __name__ == "__main__":
    main()
