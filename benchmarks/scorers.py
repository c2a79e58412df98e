"""The programs that `scoring.py` compares, each alone in a process of its own.

    python benchmarks/scorers.py NAME WORK.json

answers every line on stdin with one JSON line on stdout: the first when it is ready, one after each pass
over the columns. A pass goes from strings to scores, tokenization included.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rectangles import ladder, sorted_batches
from usage import core_seconds, peak_bytes

LIMIT = 512
HARNESS_BATCH = 8
Columns = dict[str, list[str]]
Score = Callable[[], list[float]]


def static(task: str, model_dir: Path, columns: Columns, result: str) -> Score:
    """This engine with the ladder of the rows' own lengths."""
    from staticjob.config.job_file import validate_job
    from staticjob.engine.shape import Shape
    from staticjob.engine.static_engine import StaticEngine
    from staticjob.tasks.task_module import task_module

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
    encoder = task_module(task).encoder(job, model_dir, LIMIT)
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


def harness(model_dir: Path, columns: Columns) -> Score:
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


def cross_encoder(model_dir: Path, columns: Columns) -> Score:
    """sentence-transformers' `predict` with its own batch size and sorting."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(model_dir), device="cpu", max_length=LIMIT)
    pairs = list(zip(columns["query"], columns["document"], strict=True))
    model.predict(pairs[:64], show_progress_bar=False)
    return lambda: model.predict(pairs, show_progress_bar=False).tolist()


CONTENDERS: dict[str, Callable[[Path, Columns], Score]] = {
    "staticjob logprob": lambda model_dir, columns: static("logprob", model_dir, columns, "logprob"),
    "staticjob rerank": lambda model_dir, columns: static("rerank", model_dir, columns, "score"),
    "lm-evaluation-harness": harness,
    "CrossEncoder": cross_encoder,
}


def main(name: str, path: str) -> None:
    # Libraries print; only answers may reach the real stdout.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    work: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    began = time.perf_counter()
    score = CONTENDERS[name](Path(work["model"]), work["columns"])
    answer: dict[str, Any] = {"start_seconds": time.perf_counter() - began}
    print(json.dumps(answer), file=answers, flush=True)
    while sys.stdin.readline():
        began, used = time.perf_counter(), core_seconds()
        scores = score()
        answer = {"seconds": time.perf_counter() - began, "core_seconds": core_seconds() - used}
        answer |= {"peak_bytes": peak_bytes(), "scores": scores}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
