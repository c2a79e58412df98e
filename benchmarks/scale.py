"""Does the work per row stay flat? Plan and merge at 10^5, 10^6 and 10^7 rows, without a model.

    python benchmarks/scale.py [--rows 100000 --rows 1000000 …] [--scratch DIR]

For each size a data set is made (`synthetic.py`), with result objects in place of an engine. Plan and merge
then run as in a job, each in a process of its own so that its peak memory is its own. The merged files are
read back and compared with what every row must be. 10^7 rows take about 3 GB beneath the scratch folder.
Without --rows the table is also written to RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from functools import cache, partial
from pathlib import Path

from results import machine, write_section
from synthetic import (
    DIM,
    FINGERPRINT,
    KEPT,
    LIMIT,
    check,
    file_sizes,
    prepared_job,
    split_stats,
    write_results,
)

from staticjob import claim, dataset, storage
from staticjob.layout import Output
from staticjob.memory import Target
from staticjob.merge import merge_group
from staticjob.merging.gather import read_commits
from staticjob.plan import make_plan
from staticjob.planning.basis import Basis
from staticjob.planning.head_sizes import HeadSizes
from staticjob.records.plan import Plan
from staticjob.records.prepared import Prepared
from staticjob.records.tokens import SplitStats

# The demo model's sizes; nothing of it is loaded.
MODEL_CONFIG = {
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


def planned(prepared: Prepared, stats: list[SplitStats]) -> Plan:
    return make_plan(
        prepared,
        stats,
        Basis(
            kept_schema=dataset.encode_schema(KEPT),
            max_length=LIMIT,
            model_config=MODEL_CONFIG,
            head=HeadSizes(4 * DIM),
            target=Target("cpu", "float32"),
        ),
    )


def child(step: str, folder: Path, rows: int) -> dict[str, float]:
    """Run one step in a fresh interpreter and return what it measured."""
    command = [sys.executable, __file__, "--step", step, "--scratch", str(folder), "--rows", str(rows)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, float] = json.loads(finished.stdout)
    return measured


def step_plan(folder: Path, rows: int) -> dict[str, float]:
    prepared = prepared_job(folder, rows)
    stats = split_stats(rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        plan = planned(prepared, stats)
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work = Output(prepared.config.output.uri).work(FINGERPRINT)
    storage.put_json(work.plan, plan)
    storage.put_json(work.job, prepared)
    return {
        "seconds": min(seconds),
        "peak_mib": peak / 1024,
        "grown_mib": (peak - before) / 1024,
        "chunks": len(plan.chunks),
        "spans": sum(len(chunk.spans) for chunk in plan.chunks),
        "groups": len(plan.groups),
        "useful": plan.ledger.useful_share,
    }


def step_merge(folder: Path, rows: int) -> dict[str, float]:
    work = Output(str(folder / "out")).work(FINGERPRINT)
    prepared = storage.read_json(work.job, Prepared)
    plan = storage.read_json(work.plan, Plan)
    started = time.perf_counter()
    commits = cache(partial(read_commits, work, plan.chunks))
    merged = [merge_group(work, prepared, plan, group, commits)[0] for group in plan.groups]
    seconds = time.perf_counter() - started
    assert sum(file.rows for commit in merged for file in commit.files) == rows
    return {"seconds": seconds, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def measure(folder: Path, rows: int) -> dict[str, float]:
    """Make a data set of `rows` rows, plan it, fake its results, merge and check it."""
    plan = child("plan", folder, rows)
    output = Output(str(folder / "out"))
    work = output.work(FINGERPRINT)
    write_results(work, storage.read_json(work.plan, Plan), file_sizes(rows))
    claim.take(output.uri, FINGERPRINT)
    merge = child("merge", folder, rows)
    check(output, file_sizes(rows))
    return {
        "rows": rows,
        "plan_seconds": plan["seconds"],
        "plan_peak_mib": plan["peak_mib"],
        "plan_grown_mib": plan["grown_mib"],
        "chunks": plan["chunks"],
        "spans": plan["spans"],
        "groups": plan["groups"],
        "useful": plan["useful"],
        "merge_seconds": merge["seconds"],
        "merge_us_per_row": merge["seconds"] / rows * 1e6,
        "merge_peak_mib": merge["peak_mib"],
    }


def table(measured: list[dict[str, float]]) -> str:
    """The numbers as a Markdown table."""
    columns = {
        "rows": "{rows:,}",
        "plan, s": "{plan_seconds:.3f}",
        "plan, peak MiB": "{plan_peak_mib:.0f}",
        "chunks": "{chunks}",
        "spans": "{spans}",
        "merge, s": "{merge_seconds:.2f}",
        "merge, µs a row": "{merge_us_per_row:.2f}",
        "merge, peak MiB": "{merge_peak_mib:.0f}",
    }
    lines = [list(columns), ["---:"] * len(columns)]
    lines += [[cell.format(**row) for cell in columns.values()] for row in measured]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, action="append", help="size of a data set; may be repeated")
    parser.add_argument("--scratch", type=Path, help="folder for the data sets; default: a temporary one")
    parser.add_argument("--step", choices=["plan", "merge"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        step = step_plan if given.step == "plan" else step_merge
        print(json.dumps(step(given.scratch, given.rows[0])))
        return
    measured = []
    for rows in given.rows or (10**5, 10**6, 10**7):
        with tempfile.TemporaryDirectory(prefix="staticjob-scale-", dir=given.scratch) as folder:
            measured.append(measure(Path(folder), rows))
            print(f"{rows:,} rows done", file=sys.stderr)
    body = f"{machine()}; local disk.\n\n{table(measured)}"
    print(body)
    if not given.rows:
        write_section(Path(__file__).with_name("RESULTS.md"), "Plan and merge at growing sizes", body)


if __name__ == "__main__":
    main()
