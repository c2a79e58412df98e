"""How fast are embeddings? This engine beside others, in one run on one machine.

    python benchmarks/embedding.py [--rows N] [--rounds N] [--json FILE]

Every contender has the same model, limit (512 tokens), dtype (float32) and cores, lives in a process
of its own, and goes from strings to vectors: tokenization counts for all, loading and compiling for
none. In each round every contender makes one pass, one after another, so that whatever else the
machine does strikes all alike; figures are medians over rounds, ratios medians of each round's own
ratio. Results are written to RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from contenders import CONTENDERS, CORES, LIMIT, model_dir
from process import Process
from results import machine, versions, write_section
from texts import docstrings, questions

from staticjob.encoding.tokenizer import load_tokenizer
from staticjob.engine.flops import forward_flops
from staticjob.models.model_files import model_config

HERE = Path(__file__).resolve().parent
# The ratios this engine is to reach over each contender on the docstrings.
WANTED = {"sentence-transformers": 1.7, "vllm": 2.0, "arrival": 4.0}
# Vectors of two contenders for one text may differ by float32 rounding only (cosine distance).
AGREEMENT = 2e-6


@dataclass
class Passes:
    """What one contender did on one text set."""

    seconds: list[float] = field(default_factory=list)
    core_seconds: list[float] = field(default_factory=list)
    slots: int = 0
    peak_bytes: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def compare(texts: list[str], names: list[str], rounds: int, scratch: Path) -> dict[str, Passes]:
    """All contenders over one text set, interleaved; their vectors are held to the first's."""
    path = scratch / "texts.json"
    path.write_text(json.dumps(texts), encoding="utf-8")
    processes = []
    passes = {name: Passes() for name in names}
    try:
        for name in names:
            processes.append(Process("contenders.py", name, path, scratch / f"{name}.log"))
            print(f"  {name}: ready in {processes[-1].ready():.1f} s (not counted)", flush=True)
        for number in range(rounds):
            reference = None
            for process in processes:
                answer = process.run()
                vectors = np.load(answer["vectors"])
                Path(answer["vectors"]).unlink()
                reference = vectors if reference is None else reference
                _agree(process.name, vectors, reference)
                done = passes[process.name]
                done.seconds.append(answer["seconds"])
                done.core_seconds.append(answer["core_seconds"])
                done.slots, done.peak_bytes = answer["slots"], answer["peak_bytes"]
                spent = f"{answer['seconds']:.2f} s, {answer['core_seconds']:.2f} core-s"
                print(f"  round {number + 1}: {process.name}: {spent}", flush=True)
    finally:
        for process in processes:
            process.quit()
    return passes


def _agree(name: str, vectors: Any, reference: Any) -> None:
    a, b = vectors.astype(np.float64), reference.astype(np.float64)
    distance = 1 - (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    if not distance.max() <= AGREEMENT:
        raise SystemExit(f"{name}: vectors differ by a cosine distance of {distance.max():.1e}")


def token_counts(texts: list[str]) -> list[int]:
    tokenizer = load_tokenizer(model_dir())
    tokenizer.no_padding()
    tokenizer.enable_truncation(LIMIT)
    return [len(e.ids) for e in tokenizer.encode_batch_fast(texts)]


def ratio(own: list[float], other: list[float]) -> float:
    """Median of each round's own ratio."""
    return statistics.median(b / a for a, b in zip(own, other, strict=True))


def table(passes: dict[str, Passes], counts: list[int], peak: float) -> list[str]:
    """Markdown rows; `peak` is the measured matrix-product FLOP/s."""
    config, tokens, first = model_config(model_dir()), sum(counts), next(iter(passes.values()))
    useful_flops = sum(forward_flops(config, n, 1) for n in counts)
    lines = [
        "| | rows/s | useful tokens/s | core-s per 1,000 rows | useful | useful work, of peak | peak memory "
        "| staticjob is faster | and uses fewer core-s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, done in passes.items():
        share = tokens / done.slots if done.slots else 1.0
        cells = [
            name,
            f"{len(counts) / done.median:,.0f}",
            f"{tokens / done.median:,.0f}",
            f"{statistics.median(done.core_seconds) / len(counts) * 1000:.1f}",
            f"{share:.1%}",
            f"{useful_flops / done.median / peak:.0%}",
            f"{done.peak_bytes / 2**20:,.0f} MiB",
            "" if done is first else f"**{ratio(first.seconds, done.seconds):.2f}×**",
            "" if done is first else f"{ratio(first.core_seconds, done.core_seconds):.2f}×",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000, help="rows of each text set; 0: all [2000]")
    parser.add_argument("--rounds", type=int, default=3, help="passes of each contender [3]")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    arguments = parser.parse_args()
    names = ["staticjob", *(n for n in arguments.contenders if n != "staticjob")]
    from staticjob.engine.calibrate import ceilings

    peak = ceilings("cpu").flops
    rows = arguments.rows or None
    name, asked = questions(rows)
    body = [
        f"{machine()}, {CORES} threads; matrix products reach {peak / 1e9:.0f} GFLOP/s. {versions()}.",
        f"all-MiniLM-L6-v2, float32, at most {LIMIT} tokens; medians of {arguments.rounds} interleaved "
        "rounds; strings to vectors, tokenization included for all, start-up excluded for all. `vllm` runs "
        "in one process on all cores; `vllm-default` is `LLM(…)` as it comes, which keeps one core for its "
        "front end.",
    ]
    misses = []
    for title, texts in (("docstrings of the standard library", docstrings(rows)), (name, asked)):
        print(f"{title}: {len(texts)} rows", flush=True)
        counts = token_counts(texts)
        with tempfile.TemporaryDirectory() as scratch:
            passes = compare(texts, names, arguments.rounds, Path(scratch))
        lines = table(passes, counts, peak)
        size = f"{len(counts):,} rows, {sum(counts):,} tokens (median {statistics.median(counts):.0f})"
        body += ["", f"### {title}: {size}", "", *lines]
        print("\n".join(lines), flush=True)
        if title.startswith("docstrings"):
            misses = _misses(passes)
    write_section(HERE / "RESULTS.md", "Embedding", "\n".join(body))
    for miss in misses:
        print(miss)


def _misses(passes: dict[str, Passes]) -> list[str]:
    found = []
    for name, wanted in WANTED.items():
        if name in passes:
            reached = ratio(passes["staticjob"].seconds, passes[name].seconds)
            if reached < wanted:
                found.append(f"MISSED: {reached:.2f}× {name}, wanted {wanted}×")
    return found


if __name__ == "__main__":
    main()
