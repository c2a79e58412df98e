"""Merge: the input's rows in the input's order, each exactly once, at flat memory."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fabricate import fabricate

from staticjob import dataset, steps, storage
from staticjob.errors import ConfigError, DataError, InfrastructureError
from staticjob.merge import merge_group
from staticjob.merging import gather
from staticjob.merging.scratch import SCRATCH, Heap
from staticjob.merging.spool import Spool
from staticjob.records.commit import Block
from staticjob.records.status import Status
from staticjob.running import results


@pytest.mark.parametrize("groups", [((0, 1, 2, 3),), ((0,), (1, 3), (2,))])
def test_output_files_hold_the_inputs_rows_in_the_inputs_order(
    tmp_path: Path, groups: tuple[tuple[int, ...], ...]
) -> None:
    made = fabricate(tmp_path, groups=groups)
    made.merge()
    for file in range(4):
        assert made.published(file).to_pylist() == made.expected_rows(file)


def test_merge_works_on_an_s3_store(s3) -> None:
    made = fabricate(s3.uri, groups=((0, 1), (2, 3)))
    made.merge()
    for file in range(4):
        assert made.published(file).to_pylist() == made.expected_rows(file)
    assert s3.open_uploads() == []


def test_embeddings_are_fixed_size_lists_of_float32_and_null_without_a_result(tmp_path: Path) -> None:
    made = fabricate(tmp_path)
    made.merge()
    column = made.published(0)["embedding"]
    assert column.type == pa.list_(pa.field("element", pa.float32()), 4)
    nulls = [s not in {Status.OK, Status.TRUNCATED} for s in made.statuses[0]]
    assert column.is_null().to_pylist() == nulls
    assert any(nulls)


def test_embeddings_are_stored_split_by_byte_without_dictionary_and_other_columns_with_one(
    tmp_path: Path,
) -> None:
    made = fabricate(tmp_path)
    made.merge()
    group = pq.ParquetFile(made.output.file("p0.parquet")).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert set(columns["embedding.list.element"].encodings) == {"RLE", "BYTE_STREAM_SPLIT"}
    assert columns["status"].has_dictionary_page
    assert {c.compression for c in columns.values()} == {"ZSTD"}


def test_a_file_without_rows_becomes_an_output_with_the_same_schema_and_no_rows(tmp_path: Path) -> None:
    made = fabricate(tmp_path)
    made.merge()
    assert made.published(1).num_rows == 0
    assert made.published(1).schema == made.published(0).schema


def test_a_job_that_keeps_no_column_publishes_the_results_alone(tmp_path: Path) -> None:
    made = fabricate(tmp_path, keep=())
    made.merge()
    assert made.published(3).column_names == ["embedding", "status", "reason", "n_tokens", "engine", "rung"]
    assert [r["embedding"] for r in made.published(3).to_pylist()] == [
        r["embedding"] for r in made.expected_rows(3)
    ]


def test_a_row_missing_from_every_result_is_named_and_nothing_is_published(tmp_path: Path) -> None:
    made = fabricate(tmp_path, commit=False)
    made.commit_chunk(0, made.tables["c000"].slice(1))
    for i in range(1, len(made.plan.chunks)):
        made.commit_chunk(i)
    gone = made.tables["c000"].slice(0, 1).to_pylist()[0]
    with pytest.raises(DataError, match=rf"1 rows missing \(p{gone['file']}.parquet row {gone['row']}\)"):
        merge_group(made.work, made.prepared, made.plan, made.group())
    assert not storage.list_objects(made.output.file("p0.parquet"))


def test_a_row_with_two_results_is_named_whether_in_one_chunk_or_in_two(tmp_path: Path) -> None:
    for place in (0, 1):
        made = fabricate(tmp_path / str(place), commit=False)
        twice = made.tables["c000"].slice(2, 1)
        for i, chunk in enumerate(made.plan.chunks):
            table = made.tables[chunk.id]
            made.commit_chunk(i, results.sort_rows(pa.concat_tables([table, twice])) if i == place else table)
        row = twice.to_pylist()[0]
        with pytest.raises(DataError, match=rf"1 rows doubled \(p{row['file']}.parquet row {row['row']}\)"):
            merge_group(made.work, made.prepared, made.plan, made.group())


def test_a_result_for_a_row_the_input_does_not_have_is_refused(tmp_path: Path) -> None:
    made = fabricate(tmp_path, commit=False)
    for i, chunk in enumerate(made.plan.chunks):
        table = made.tables[chunk.id]
        if i == 0:
            rows = table["row"].to_numpy().copy()
            rows[0] += 10_000
            table = table.set_column(1, "row", pa.array(rows))
        made.commit_chunk(i, table)
    with pytest.raises(DataError, match="which the plan does not have"):
        merge_group(made.work, made.prepared, made.plan, made.group())


def test_an_unfinished_chunk_is_named_with_the_command_that_finishes_it(tmp_path: Path) -> None:
    made = fabricate(tmp_path, commit=False)
    made.commit_chunk(0)
    with pytest.raises(DataError, match=r"chunk c001: not finished; run `staticjob chunk .* --chunk c001`"):
        merge_group(made.work, made.prepared, made.plan, made.group())


def test_a_merged_group_is_kept_and_a_damaged_output_file_is_written_again_with_equal_bytes(
    tmp_path: Path,
) -> None:
    made = fabricate(tmp_path)
    first, kept = merge_group(made.work, made.prepared, made.plan, made.group())
    assert not kept
    uri = made.output.file("p3.parquet")
    data = storage.read(uri)
    assert merge_group(made.work, made.prepared, made.plan, made.group()) == (first, True)
    storage.put(uri, data[:-1] + b"?")
    again, kept = merge_group(made.work, made.prepared, made.plan, made.group())
    assert not kept
    assert storage.read(uri) == data
    assert storage.read_json(made.work.merge("g00000"), type(again)) == again


def test_groups_are_looked_up_once_each_and_commits_are_read_once_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fabricate(tmp_path, groups=((0, 1), (2,), (3,)))
    found: list[str] = []
    real = storage.find_json
    monkeypatch.setattr(storage, "find_json", lambda uri, kind: found.append(uri) or real(uri, kind))
    merged, kept = steps.merge(made.work, made.prepared, made.plan)
    assert (len(merged), kept) == (3, 0)
    expected = [made.work.commit(chunk.id) for chunk in made.plan.chunks]
    expected += [made.work.merge(group.id) for group in made.plan.groups]
    assert sorted(found) == sorted(expected)
    found.clear()
    assert steps.merge(made.work, made.prepared, made.plan) == (merged, 3)
    assert sorted(found) == sorted(expected[-3:])


def test_a_kept_column_with_the_name_of_a_result_column_is_refused(tmp_path: Path) -> None:
    made = fabricate(tmp_path, keep=("id", "status"))
    with pytest.raises(ConfigError, match="column 'status' has the name of a result column"):
        merge_group(made.work, made.prepared, made.plan, made.group())


def test_input_replaced_by_another_of_the_same_size_is_refused_and_nothing_published(tmp_path: Path) -> None:
    made = fabricate(tmp_path)
    uri = made.prepared.files[0].object.uri
    data = storage.read(uri)
    storage.put(uri, data)
    with pytest.raises(DataError, match="changed"):
        merge_group(made.work, made.prepared, made.plan, made.group())
    assert storage.head(made.output.file("p0.parquet")) is None
    assert storage.head(made.work.merge("g00000")) is None


def test_a_temporary_disk_that_is_too_small_is_named_with_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCRATCH, str(tmp_path))
    with pytest.raises(InfrastructureError, match=rf"{tmp_path}: the merge needs \d+ bytes .* \d+ are free"):
        Spool(2**50 // 64, [], tmp_path)


def test_a_disk_that_is_full_when_the_last_bytes_are_written_is_explained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tempfile, "TemporaryFile", lambda dir: io.BufferedRandom(io.FileIO("/dev/full", "r+"))
    )
    heap = Heap(tmp_path)
    heap.add(pa.array([b"some", b"bytes"], pa.large_binary()))
    explained = rf"^{tmp_path}: the merge needs 25 bytes .*No space left"
    with pytest.raises(InfrastructureError, match=explained), closing(heap):
        heap.seal()


def test_a_scratch_folder_that_takes_no_file_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fabricate(tmp_path)
    (tmp_path / "file").touch()
    # Not a folder without write permission: tests may run as root, whom it does not stop.
    for folder in (tmp_path / "none", tmp_path / "file", Path("/proc")):
        monkeypatch.setenv(SCRATCH, str(folder))
        with pytest.raises(ConfigError, match=rf"^STATICJOB_SCRATCH: {folder}: .*; name a folder that"):
            merge_group(made.work, made.prepared, made.plan, made.group())


def test_the_spool_has_no_name_so_that_a_killed_merge_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv(SCRATCH, str(scratch))
    real = dataset.read_kept
    seen = []

    def watched(*args: object) -> object:
        seen.extend(scratch.iterdir())
        return real(*args)

    monkeypatch.setattr(dataset, "read_kept", watched)
    fabricate(tmp_path / "job").merge()
    assert seen == list(scratch.iterdir()) == []


def test_text_results_of_any_length_come_back_by_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    texts = [None if k % 7 == 3 else "ü" * int(n) for k, n in enumerate(rng.integers(0, 200, 500))]
    with Spool(500, [pa.field("text", pa.string()), pa.field("score", pa.float32())], tmp_path) as spool:
        order = rng.permutation(500)
        for start in range(0, 500, 60):
            at = order[start : start + 60]
            spool.put(
                at,
                pa.record_batch(
                    {
                        "status": pa.array(["ok"] * len(at)),
                        "reason": pa.nulls(len(at), pa.string()),
                        "n_tokens": pa.array([1] * len(at), pa.int32()),
                        "rung": pa.array([8] * len(at), pa.int32()),
                        "engine": pa.array(["static" if i % 2 else "vllm" for i in at]),
                        "text": pa.array([texts[i] for i in at], pa.string()),
                        "score": pa.array(at / 10, pa.float32()),
                    }
                ),
            )
        assert not spool.seal().missing
        found = spool.read(100, 400)
        assert found["text"].to_pylist() == texts[100:400]
        assert found["engine"].to_pylist() == ["static" if i % 2 else "vllm" for i in range(100, 400)]
        assert found["score"].to_pylist() == pa.array(np.arange(100, 400) / 10, pa.float32()).to_pylist()


def test_only_blocks_that_touch_the_groups_files_are_fetched() -> None:
    def block(file: int, row: int) -> Block:
        return Block(file=file, row=row, rows=10, offset=file * 1000 + row, bytes=10)

    blocks = [block(0, 0), block(0, 50), block(2, 0), block(3, 7), block(9, 0)]
    starts = {
        files: [[b.offset for b in run] for run in gather.touched(blocks, files)]
        for files in [(0,), (1,), (2,), (3,), (0, 3), (12,)]
    }
    assert starts[0,] == [[0, 50]]  # ends before file 2: its successor begins with row 0
    assert starts[1,] == [[50]]
    assert starts[2,] == [[2000]]
    assert starts[3,] == [[2000, 3007]]
    assert starts[0, 3] == [[0, 50, 2000, 3007]]
    assert starts[12,] == [[9000]]


def test_store_requests_grow_with_chunks_not_with_files_times_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fabricate(tmp_path, rows=(5,) * 60, rows_per_chunk=64)
    reads = []
    real = storage.read_range
    monkeypatch.setattr(storage, "read_range", lambda *a: reads.append(str(a[0])) or real(*a))
    made.merge()
    results_read = [r for r in reads if r.endswith("result-x.arrow")]
    assert len(results_read) <= len(made.plan.chunks) + 1


def test_the_spool_stays_at_flat_memory_however_many_rows_it_takes(tmp_path: Path) -> None:
    """4 times the rows make the peak grow by less than half of the added bytes."""
    code = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from staticjob.merging import spool
rows = int(sys.argv[2])
spool.LOT_BYTES, spool.PAGE_ROWS = 4 * 2**20, 1024  # in proportion to so few rows
width, lot = 128, 4096
batch = pa.record_batch({
    "status": pa.array(["ok"] * lot), "reason": pa.nulls(lot, pa.string()),
    "n_tokens": pa.array([1] * lot, pa.int32()), "rung": pa.array([8] * lot, pa.int32()),
    "engine": pa.array(["static"] * lot),
    "embedding": pa.FixedSizeListArray.from_arrays(pa.array(np.ones(lot * width, np.float32)), width)})
order = np.random.default_rng(0).permutation(rows)
with spool.Spool(rows, [pa.field("embedding", pa.list_(pa.float32(), width))], Path(sys.argv[1])) as s:
    for start in range(0, rows, lot):
        s.put(order[start:start + lot], batch)
    assert not s.seal().missing
    for start in range(0, rows, lot):
        s.read(start, start + lot)
    # Not ru_maxrss: that begins with what the parent had.
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    peaks = []
    for rows in (2**15, 2**17):
        answer = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path), str(rows)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(answer.stdout) * 1024)
    grown = (2**17 - 2**15) * (128 * 4 + 18)
    assert peaks[1] - peaks[0] < grown / 2
