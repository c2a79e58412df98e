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

from usage import core_seconds, machine_seconds
from workloads import Workload

from staticjob.config import ModelConfig
from staticjob.encoding import load_tokenizer
from staticjob.engine.heap import release_freed_memory
from staticjob.engine.shape import Shape
from staticjob.fallback import Vllm, worker_settings
from staticjob.generating.curve_history import Earlier, ShapeRates
from staticjob.generating.decode_rates import StaticRates, VllmRates
from staticjob.generating.generate_rows import ChunkRows, PromptBatch, Tail, TextRow, decoder_settings
from staticjob.generating.options import GenerateOptions
from staticjob.generating.survival import Observed
from staticjob.generating.tail_policy import Engine, TailPolicy
from staticjob.planning.device import free_memory
from staticjob.policy import Decision, Scope

CORES = len(os.sched_getaffinity(0))


class Run:
    """The chunks of a workload, one per rung, in one process as a pack: all static parts, then all tails."""

    def __init__(self, engine: Engine, work: Workload, earlier: dict[str, Any] | None) -> None:
        self.engine, self.work = engine, work
        self.options = GenerateOptions(work.cap, stop_token_ids=tuple(work.stop_ids), ignore_eos=True)
        self.rows: list[TextRow] = []
        self.tails: list[Tail] = []
        self.seconds: dict[str, float] = {}
        self.curves: list[dict[str, Any]] = []
        self.decisions: list[Decision] = []
        self._seen = Observed(work.cap)
        self._rates: dict[Shape, StaticRates] = {}
        self._earlier = Earlier()
        if earlier:
            self._seen.add_lengths(earlier["lengths"])
            shapes = tuple(ShapeRates(**each) for each in earlier["static_rates"])
            self._earlier = Earlier(static_shapes=shapes, vllm=VllmRates(**earlier["vllm_rates"]))

    def run(self) -> dict[str, Any]:
        started, others = time.perf_counter(), machine_seconds() - core_seconds()
        chunks = [list(group) for _, group in groupby(self.work.batches(), lambda batch: batch.shape)]
        policies = [self._policy(chunk) for chunk in chunks]
        wholly = [policy.sends_rest() for policy in policies]
        # Weights are not loaded twice where the earlier run's numbers alone send everything to vLLM.
        if not all(wholly):
            self._static(chunks)
        else:
            self.decisions = [decision for policy in policies for decision in policy.decisions]
            self.tails = [
                Tail(key, batch.prompt(row), limit=batch.limit(row))
                for chunk in chunks
                for batch in chunk
                for row, key in enumerate(batch.keys)
            ]
        self.seconds["static"] = time.perf_counter() - started
        rates = self._finish(policies[0]) if self.tails else None
        self.seconds["all"] = time.perf_counter() - started
        others = max(0.0, machine_seconds() - core_seconds() - others) / self.seconds["all"]
        return self._report(rates) | {"others": others}

    def _policy(self, chunk: list[PromptBatch]) -> TailPolicy:
        """A chunk's policy, which knows what the run's chunks before it and the earlier run have shown."""
        work, shape = self.work, chunk[0].shape
        rows = sum(len(batch.keys) for batch in chunk)
        scope = Scope(
            prompt=shape.length,
            mean_prompt=sum(int(batch.lengths.sum()) for batch in chunk) / rows,
            cap=work.cap,
            rows_to_come=rows,
            start_share=0.0 if self.tails else rows / len(work.prompts),
        )
        static = self._earlier.static(shape, self._rates)
        return TailPolicy(
            self.engine, scope, shape.batch, CORES, "cpu", self._seen, static, self._earlier.vllm
        )

    def _rows(self, policy: TailPolicy) -> ChunkRows:
        return ChunkRows(policy, load_tokenizer(self.work.model), self.options, self.work.stop_ids)

    def _static(self, chunks: list[list[PromptBatch]]) -> None:
        import torch

        from staticjob.engine.decode import StaticDecoder

        torch.set_num_threads(CORES)
        settings = ModelConfig(path=str(self.work.model), device="cpu", dtype="float32")
        sampling, ending = decoder_settings(self.options, self.work.stop_ids)
        shapes = sorted({chunk[0].shape for chunk in chunks})
        began = time.perf_counter()
        decoder = StaticDecoder(self.work.model, settings, shapes, self.work.cap, sampling, ending)
        self.seconds["static_start"] = time.perf_counter() - began
        for chunk in chunks:
            policy = self._policy(chunk)
            for done in self._rows(policy).static(decoder, chunk):
                self.rows += done.rows
                self.tails += done.tails
                if done.curve:
                    curve = {"active": done.curve.active, "left": done.curve.left, "rows": done.curve.rows}
                    seconds = {"prompt": chunk[0].shape.length, "seconds": done.decode_seconds}
                    self.curves.append(curve | seconds)
            self._seen.at_risk += policy.seen.at_risk
            self._seen.ended += policy.seen.ended
            rates = policy.static_rates()
            if rates:
                self._rates[chunk[0].shape] = rates
            self.decisions += policy.decisions
        del decoder
        gc.collect()
        release_freed_memory()

    def _finish(self, policy: TailPolicy) -> VllmRates | None:
        lengths = [len(t.prompt) + self.work.cap for t in self.tails]
        settings = worker_settings(self.work.model, "float32", "cpu", lengths, free_memory())
        with Vllm(settings) as vllm:
            self.rows += self._rows(policy).tails(self.tails, vllm)
            self.seconds["vllm_start"] = vllm.start_seconds
            return vllm.rates()

    def _report(self, vllm: VllmRates | None) -> dict[str, Any]:
        by_row = {text.key.row: text for text in self.rows}
        assert sorted(by_row) == list(range(len(self.work.prompts)))
        return {
            "seconds": self.seconds,
            "lengths": [len(by_row[row].tokens) for row in range(len(by_row))],
            "engines": [by_row[row].engine for row in range(len(by_row))],
            "tokens": [by_row[row].tokens for row in range(len(by_row))],
            "tails": len(self.tails),
            "curves": self.curves,
            "decisions": [d.model_dump() for d in self.decisions],
            "static_rates": [
                {"length": shape.length, "rates": rates.model_dump()} for shape, rates in self._rates.items()
            ],
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
