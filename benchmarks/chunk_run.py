"""One whole run of a workload in a fresh process, start-ups included: static, vLLM, or as the policy decides.

    python benchmarks/chunk_run.py ENGINE WORKLOAD.json [--earlier FILE]

prints one JSON object: seconds of the parts, texts' lengths, curves, decisions, and the rates measured.
`--earlier` names the output of another run, whose lengths and rates the policy starts from.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from itertools import groupby
from pathlib import Path
from typing import Any

from workloads import Workload

from staticjob.fallback import Vllm, worker_settings
from staticjob.generating.decode_rates import StaticRates, VllmRates
from staticjob.generating.generate_rows import ChunkRows, PromptBatch, Tail, TextRow, decoder_settings
from staticjob.generating.options import GenerateOptions
from staticjob.generating.survival import Observed
from staticjob.generating.tail_policy import TailPolicy
from staticjob.models.model_files import model_config
from staticjob.planning.device import free_memory
from staticjob.policy import Scope

CORES = len(os.sched_getaffinity(0))


class Run:
    """The chunks of a workload, one per rung, in one process: all static parts, then all tails."""

    def __init__(self, engine: str, work: Workload, earlier: dict[str, Any] | None) -> None:
        self.engine, self.work, self.earlier = engine, work, earlier
        self.options = GenerateOptions(work.cap, stop_token_ids=tuple(work.stop_ids), ignore_eos=True)
        self.rows: list[TextRow] = []
        self.tails: list[Tail] = []
        self.policies: list[TailPolicy] = []
        self.seconds: dict[str, float] = {}
        self.curves: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        from staticjob.encoding import load_tokenizer

        started = time.perf_counter()
        tokenizer = load_tokenizer(self.work.model)
        chunks = [(shape, list(group)) for shape, group in groupby(self.work.batches(), lambda b: b.shape)]
        waiting = [self._chunk(shape.length, batches, tokenizer) for shape, batches in chunks]
        if self.engine != "vllm" and not self._all_to_vllm():
            self._static(waiting)
        else:
            self.tails = [
                Tail(key, batch.prompt(row), limit=batch.limit(row))
                for _, batches in waiting
                for batch in batches
                for row, key in enumerate(batch.keys)
            ]
        self.seconds["static"] = time.perf_counter() - started
        rates = self._finish(waiting[0][0]) if self.tails else None
        self.seconds["all"] = time.perf_counter() - started
        return self._report(rates)

    def _chunk(
        self, length: int, batches: list[PromptBatch], tokenizer: Any
    ) -> tuple[ChunkRows, list[PromptBatch]]:
        rows = sum(len(batch.keys) for batch in batches)
        mean = sum(int(batch.lengths.sum()) for batch in batches) / rows
        seen, static, vllm = None, None, None
        if self.earlier:
            seen = Observed(self.work.cap)
            seen.add_lengths(self.earlier["lengths"])
            static = self.earlier["static_rates"] and StaticRates(**self.earlier["static_rates"])
            vllm = self.earlier["vllm_rates"] and VllmRates(**self.earlier["vllm_rates"])
        scope = Scope(length, mean, self.work.cap, rows)
        policy = TailPolicy(self.engine, scope, self.work.batch, CORES, "cpu", seen, static, vllm)  # type: ignore[arg-type]
        self.policies.append(policy)
        return ChunkRows(policy, tokenizer, self.options, self.work.stop_ids), batches

    def _all_to_vllm(self) -> bool:
        """Whether the earlier run's numbers alone send everything to vLLM: weights are not loaded twice."""
        return self.engine == "auto" and all(policy.sends_rest() for policy in self.policies)

    def _static(self, waiting: list[tuple[ChunkRows, list[PromptBatch]]]) -> None:
        import torch

        from staticjob.config import ModelConfig
        from staticjob.engine.decode import StaticDecoder

        torch.set_num_threads(CORES)
        settings = ModelConfig(path=str(self.work.model), device="cpu", dtype="float32")
        sampling, ending = decoder_settings(self.options, self.work.stop_ids)
        shapes = sorted({batch.shape for _, batches in waiting for batch in batches})
        decoder = StaticDecoder(self.work.model, settings, shapes, self.work.cap, sampling, ending)
        self.seconds["static_start"] = decoder.start_seconds
        for chunk, batches in waiting:
            for done in chunk.static(decoder, batches):
                self.rows += done.rows
                self.tails += done.tails
                if done.curve:
                    curve = {"active": done.curve.active, "left": done.curve.left, "rows": done.curve.rows}
                    shape = batches[0].shape
                    self.curves.append(curve | {"prompt": shape.length, "seconds": done.decode_seconds})
        del decoder
        gc.collect()

    def _finish(self, chunk: ChunkRows) -> VllmRates | None:
        lengths = [len(t.prompt) + self.work.cap for t in self.tails]
        settings = worker_settings(self.work.model, "float32", "cpu", lengths, free_memory())
        with Vllm(settings) as vllm:
            self.rows += chunk.tails(self.tails, vllm)
            self.seconds["vllm_start"] = vllm.start_seconds
            return vllm.rates()

    def _report(self, vllm: VllmRates | None) -> dict[str, Any]:
        assert model_config(self.work.model)
        by_row = {text.key.row: text for text in self.rows}
        assert sorted(by_row) == list(range(len(self.work.prompts)))
        static = self.policies[-1].static_rates()
        return {
            "seconds": self.seconds,
            "lengths": [len(by_row[row].tokens) for row in range(len(by_row))],
            "engines": [by_row[row].engine for row in range(len(by_row))],
            "tokens": [by_row[row].tokens for row in range(len(by_row))],
            "tails": len(self.tails),
            "curves": self.curves,
            "decisions": [d.model_dump() | {"gain": d.gain} for p in self.policies for d in p.decisions],
            "static_rates": static and static.model_dump(),
            "vllm_rates": vllm and vllm.model_dump(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine", choices=["auto", "static", "vllm"])
    parser.add_argument("workload", type=Path)
    parser.add_argument("--earlier", type=Path)
    arguments = parser.parse_args()
    earlier = json.loads(arguments.earlier.read_text()) if arguments.earlier else None
    print(json.dumps(Run(arguments.engine, Workload.read(arguments.workload), earlier).run()))


if __name__ == "__main__":
    main()
