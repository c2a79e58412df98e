"""One whole run of a workload in a fresh process, start-ups included: static, vLLM, or as the policy decides.

    python benchmarks/chunk_run.py ENGINE WORKLOAD.json [--earlier FILE]

It is the job's own run of a pack, store and all, over chunks of one rung each. Prints one JSON object:
seconds, texts' lengths, curves, decisions, and the rates measured. `--earlier` names the output of another
run, whose lengths and rates the policy starts from.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from usage import core_seconds, machine_seconds
from workloads import Workload

from staticjob import storage
from staticjob.config.job import JobConfig
from staticjob.config.job_file import validate_job
from staticjob.engine.decode_batch import Prompts
from staticjob.generating import generate_pack
from staticjob.generating.curve_history import Earlier, ShapeRates
from staticjob.generating.decode_rates import VllmRates
from staticjob.generating.fallback import TailRequest
from staticjob.generating.generate_rows import BatchDone, TextWriter
from staticjob.generating.text_rows import PromptBatch, Tail
from staticjob.layout import Work
from staticjob.ledger import Ledger
from staticjob.records.commit import Commit
from staticjob.records.plan import Chunk, Plan, Span
from staticjob.records.prepared import ModelFiles, Prepared
from staticjob.records.tokens import ROW_DTYPE
from staticjob.running import results
from staticjob.running.pack_run import PackRun, Placement
from staticjob.running.parts import PartWriter
from staticjob.running.progress import Reporter
from staticjob.running.watch import StopFlag

CORES = len(os.sched_getaffinity(0))


class ForcedWriter(TextWriter):
    """Ends every row at its length of the workload, which the policy does not see; keeps the curves."""

    work: Workload
    curves: list[dict[str, Any]]

    def static(self, *args: Any, **named: Any) -> Generator[BatchDone]:
        for done in super().static(*args, **named):
            curve = {"active": done.curve.active, "left": done.curve.left, "rows": done.curve.rows}
            seconds = {"prompt": done.batch.shape.length, "seconds": done.decode_seconds}
            self.curves.append(curve | seconds)
            yield done

    def _prompts(self, batch: PromptBatch) -> Prompts:
        limits = np.full(batch.shape.batch, self.work.cap, np.int32)
        limits[: len(batch.keys)] = [self.work.limits[key.row] for key in batch.keys]
        return replace(super()._prompts(batch), limits=limits)

    def _request(self, number: int, tail: Tail) -> TailRequest:
        left = self.work.limits[tail.key.row] - len(tail.tokens)
        return replace(super()._request(number, tail), max_new_tokens=left)


def run(engine: str, work: Workload, earlier: Earlier) -> dict[str, Any]:
    """All chunks of the workload in this process."""
    import torch

    torch.set_num_threads(CORES)
    curves: list[dict[str, Any]] = []
    writer = type("Writer", (ForcedWriter,), {"work": work, "curves": curves})
    generate_pack.TextWriter = writer  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder, StopFlag() as stop:
        place = Work(folder)
        chunks = write_chunks(place, work)
        plan = Plan.model_construct(chunks=chunks)
        prepared = prepared_job(engine, work, folder)
        began, others = time.perf_counter(), machine_seconds() - core_seconds()
        with Reporter(plan, [chunk.id for chunk in chunks]) as reporter:
            pack = PackRun(place, prepared, plan, chunks, stop, reporter, began)
            made = list(generate_pack.run_chunks(pack, Placement(work.model, "cpu", "float32"), earlier))
        seconds = time.perf_counter() - began
        others = max(0.0, machine_seconds() - core_seconds() - others) / seconds
        return report(place, work, made, seconds) | {"curves": curves, "others": others}


def prepared_job(engine: str, work: Workload, folder: str) -> Prepared:
    """The workload as a job; its input is there already, as token ids."""
    job: dict[str, Any] = {
        "name": work.name,
        "task": "generate",
        "engine": engine,
        "model": {"path": work.model_dir, "device": "cpu", "dtype": "float32"},
        "input": {"uri": folder, "columns": {"prompt": "prompt"}},
        "output": {"uri": folder},
        "generate": {
            "max_new_tokens": work.cap,
            "stop_token_ids": work.stop_ids,
            "ignore_eos": True,
            "token_ids": True,
        },
    }
    config: JobConfig = validate_job(job, work.name)
    model = ModelFiles(source=work.model_dir, files=(), digest="")
    return Prepared(staticjob="", config=config, fingerprint="", files=(), splits=(), model=model, created="")


def write_chunks(place: Work, work: Workload) -> tuple[Chunk, ...]:
    """The prompts as one part, and a chunk for the batches of each padded length."""
    rows = np.zeros(len(work.prompts), ROW_DTYPE)
    rows["row"] = np.arange(len(work.prompts))
    rows["length"] = [len(prompt) for prompt in work.prompts]
    rows["boundary"] = -1
    part = PartWriter(place, "prompts")
    part.add(rows, np.concatenate([np.array(prompt, np.int32) for prompt in work.prompts]))
    part.flush()
    chunks, row, token = [], 0, 0
    for shape, group in groupby(work.batches(), lambda batch: batch.shape):
        batches = list(group)
        count = sum(len(batch.keys) for batch in batches)
        tokens = sum(int(batch.lengths.sum()) for batch in batches)
        (stats,) = part.parts
        span = Span(part=stats.id, start=row, stop=row + count, token_start=token, token_stop=token + tokens)
        slots = shape.length * shape.batch * len(batches)
        chunks.append(
            Chunk(
                id=f"{shape.length}-{row}",
                length=shape.length,
                batch=shape.batch,
                batches=len(batches),
                rows=count,
                spans=(span,),
                ledger=Ledger(useful=tokens, padding=slots - tokens, slots=slots),
            )
        )
        row, token = row + count, token + tokens
    return tuple(chunks)


def report(place: Work, work: Workload, made: list[Commit], seconds: float) -> dict[str, Any]:
    """What the run's commits and results say."""
    tokens: dict[int, list[int]] = {}
    for commit in made:
        table = results.from_ipc(storage.read(place.chunk(commit.chunk, commit.result)))
        tokens |= dict(zip(table["row"].to_pylist(), table["token_ids"].to_pylist(), strict=True))
    assert sorted(tokens) == list(range(len(work.prompts)))
    outcomes = [commit.generation for commit in made if commit.generation]
    rates = {(c.length, c.batch): c.generation.static_rates for c in made if c.generation}
    vllm = next((o.vllm_rates for o in reversed(outcomes) if o.vllm_rates), None)
    return {
        "seconds": {"starts": sum(commit.start_seconds for commit in made), "all": seconds},
        "lengths": [len(tokens[row]) for row in range(len(tokens))],
        "tokens": [tokens[row] for row in range(len(tokens))],
        "tails": sum(outcome.vllm.tails + outcome.vllm.rows for outcome in outcomes),
        "decisions": [d.model_dump() for outcome in outcomes for d in outcome.decisions],
        "static_rates": [
            {"length": length, "rates": each.model_dump()} for (length, _), each in rates.items() if each
        ],
        "vllm_rates": vllm and vllm.model_dump(),
    }


def told_before(work: Workload, record: dict[str, Any]) -> Earlier:
    """Another run's output as a job's history holds it."""
    return Earlier(
        cap=work.cap,
        lengths=Counter(record["lengths"]),
        static_shapes=tuple(ShapeRates(**each) for each in record["static_rates"]),
        vllm=VllmRates(**record["vllm_rates"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine", choices=["auto", "static", "vllm"])
    parser.add_argument("workload", type=Path)
    parser.add_argument("--earlier", type=Path)
    arguments = parser.parse_args()
    work, earlier = Workload.read(arguments.workload), Earlier()
    if arguments.earlier:
        earlier = told_before(work, json.loads(arguments.earlier.read_text()))
    print(json.dumps(run(arguments.engine, work, earlier)))


if __name__ == "__main__":
    main()
