"""A job of any size without a model: input files, what tokenize and an engine would have left, and the check.

Input files of FILE_ROWS rows whose kept column is an id, token counts drawn from a long-tailed distribution
in shuffled order, and result objects that hold a small vector computed from each row's place.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from staticjob import dataset, storage
from staticjob.config.job_file import validate_job
from staticjob.layout import Output, Work
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
        "benchmarks/synthetic.py",
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
