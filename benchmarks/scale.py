"""Does the work per row stay flat? Plan and merge at 10^5, 10^6 and 10^7 rows, without a model.

    python benchmarks/scale.py [--rows 100000 --rows 1000000 …] [--scratch DIR]

For each size a synthetic data set is made: input files of 100,000 rows whose kept column is an id,
token counts drawn from a long-tailed distribution in shuffled order, and, in place of an engine,
result objects that hold a small vector computed from each row's place. Plan and merge then run as
in a job, each in a process of its own so that its peak memory is its own. The merged files are read
back and compared with what every row must be. 10^7 rows take about 3 GB beneath the scratch folder.
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

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from results import machine, write_section

from staticjob import claim, dataset, storage
from staticjob.config.job_file import validate_job
from staticjob.layout import Output, Work
from staticjob.memory import Target
from staticjob.merge import merge_group
from staticjob.merging.gather import read_commits
from staticjob.plan import make_plan
from staticjob.planning.basis import Basis
from staticjob.planning.head_sizes import HeadSizes
from staticjob.records.commit import Commit
from staticjob.records.plan import Chunk, Plan
from staticjob.records.prepared import FileSlice, InputFile, ModelFiles, Prepared, Split
from staticjob.records.status import Status
from staticjob.records.tokens import PartStats, SliceStats, SplitStats
from staticjob.running import results

FILE_ROWS = 100_000
DIM = 8
LIMIT = 512
KEPT = pa.schema([("id", pa.int64())])
FINGERPRINT = "5ca1e" * 12
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


def token_counts(file: int, rows: int) -> np.ndarray:
    """Token count of every row of a file: log-normal, 3 to 512, in no order; [rows] int32."""
    rng = np.random.default_rng(file)
    return np.clip(rng.lognormal(4.0, 0.9, rows), 3, LIMIT).astype(np.int32)


def vectors(file: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The result of each row, [n, DIM] float32: exact in float32, so it can be compared."""
    place = (file.astype(np.int64) * FILE_ROWS + row)[:, None] + np.arange(DIM) * 7919
    return (place % 65_521).astype(np.float32)


def file_sizes(rows: int) -> list[int]:
    return [min(FILE_ROWS, rows - first) for first in range(0, rows, FILE_ROWS)]


def split_stats(rows: int) -> list[SplitStats]:
    """What tokenize would have left: one split, with one part, per input file."""
    stats = []
    for file, size in enumerate(file_sizes(rows)):
        counts = token_counts(file, size)
        lengths, numbers = np.unique(counts, return_counts=True)
        part = PartStats(
            id=f"s{file:05d}-p000",
            rows=size,
            tokens=int(counts.sum()),
            lengths=tuple(lengths[::-1].tolist()),
            counts=tuple(numbers[::-1].tolist()),
        )
        stats.append(
            SplitStats(
                split=f"s{file:05d}",
                parts=(part,),
                slices=(
                    SliceStats(
                        file=file, first_row=0, rows=size, items=size, kept_schema=dataset.encode_schema(KEPT)
                    ),
                ),
                statuses={Status.OK: size},
                arrival_slots=sum(
                    int(block.max()) * len(block) for block in np.split(counts, range(32, size, 32))
                ),
                seconds=0.0,
            )
        )
    return stats


def prepared_job(folder: Path, rows: int) -> Prepared:
    """Write the input files and pin them."""
    source = folder / "in"
    source.mkdir(parents=True, exist_ok=True)
    files = []
    for index, size in enumerate(file_sizes(rows)):
        path = source / f"p{index}.parquet"
        if not path.exists():
            ids = np.arange(size, dtype=np.int64) + index * FILE_ROWS
            pq.write_table(pa.table({"id": ids}, schema=KEPT), path, row_group_size=50_000)
        pin = storage.head(str(path))
        assert pin is not None
        files.append(InputFile(index=index, path=path.name, object=pin, format="parquet", output=path.name))
    config = validate_job(
        {
            "name": "scale",
            "model": {"path": "none"},
            "input": {"uri": str(source), "columns": {"text": "id"}, "keep": ["id"]},
            "output": {"uri": str(folder / "out")},
        },
        "benchmarks/scale.py",
    )
    return Prepared(
        staticjob="0",
        config=config,
        fingerprint=FINGERPRINT,
        files=tuple(files),
        splits=tuple(Split(id=f"s{i:05d}", slices=(FileSlice(file=i),)) for i in range(len(files))),
        model=ModelFiles(source="none", files=(), digest="0" * 64),
        created="2026-01-01T00:00:00+00:00",
    )


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


def write_results(work: Work, plan: Plan, sizes: list[int]) -> None:
    """Commit every chunk as if an engine had run it."""
    heads = [pa.field("embedding", pa.list_(pa.field("element", pa.float32()), DIM))]
    schema = results.result_schema(heads)
    orders = [np.argsort(-token_counts(f, n), kind="stable").astype(np.int32) for f, n in enumerate(sizes)]
    for chunk in plan.chunks:
        # A span's part is named after its file: s00012-p000 is file 12.
        pieces = [(int(span.part[1:6]), span) for span in chunk.spans]
        file = np.concatenate([np.full(s.stop - s.start, f, np.int32) for f, s in pieces])
        row = np.concatenate([orders[f][s.start : s.stop] for f, s in pieces]).astype(np.int64)
        in_order = np.lexsort((row, file))
        file, row = file[in_order], row[in_order]
        n = len(row)
        columns = [
            pa.array(file),
            pa.array(row),
            pa.array(np.zeros(n, np.int32)),
            pa.array(["ok"] * n, pa.string()),
            pa.nulls(n, pa.string()),
            pa.array(np.full(n, chunk.length, np.int32)),
            pa.array(np.full(n, chunk.length, np.int32)),
            pa.array(["static"] * n, pa.string()),
            pa.FixedSizeListArray.from_arrays(pa.array(vectors(file, row).reshape(-1)), type=heads[0].type),
        ]
        commit_chunk(work, chunk, pa.table(columns, schema=schema))


def commit_chunk(work: Work, chunk: Chunk, table: pa.Table) -> None:
    size, blocks = results.write_result(work.chunk(chunk.id, "result-x.arrow"), table)
    commit = Commit(
        chunk=chunk.id,
        result="result-x.arrow",
        size=size,
        rows=table.num_rows,
        blocks=blocks,
        statuses={Status.OK: table.num_rows},
        ledger=chunk.ledger,
        length=chunk.length,
        batch=chunk.batch,
        batches=chunk.batches,
        kept_batches=0,
        seconds=0.0,
        compute_seconds=0.0,
        start_seconds=0.0,
        peak_bytes=None,
        device="cpu",
        dtype="float32",
        worker="scale",
        versions={},
        finished="2026-01-01T00:00:00+00:00",
    )
    storage.put_json(work.commit(chunk.id), commit)


def check(output: Output, sizes: list[int]) -> None:
    """Every row of every published file is the input's row with its own result."""
    for index, size in enumerate(sizes):
        table = pq.read_table(output.file(f"p{index}.parquet"))
        row = np.arange(size, dtype=np.int64)
        assert np.array_equal(table["id"].to_numpy(), row + index * FILE_ROWS)
        values = np.concatenate([results.vectors(c) for c in table["embedding"].chunks])
        assert np.array_equal(values, vectors(np.full(size, index), row))


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
