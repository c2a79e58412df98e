"""Cases O1 to O4: nothing to do, a changed plan, an unfinished run, thousands of files."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_jobs import job, planned, read_output, texts, write_input

from staticjob import steps, storage
from staticjob.errors import DataError
from staticjob.layout import Output, join
from staticjob.local_run import run_job
from staticjob.prepare import prepare
from staticjob.records.output import Manifest
from staticjob.running.pack import run_pack
from staticjob.running.progress import Reporter
from staticjob.running.watch import StopFlag
from staticjob.status import read_status
from staticjob.terminal.payloads import status_json


def put_parquet(uri: str, rows: list[str | None]) -> None:
    table = pa.table({"id": pa.array(range(len(rows)), pa.int64()), "text": pa.array(rows, pa.string())})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    storage.put(uri, sink.getvalue())


def etags(uri: str) -> dict[str, str]:
    return {obj.uri: obj.version for obj in storage.list_objects(uri + "/")}


def test_an_input_without_rows_is_a_successful_run_with_a_manifest_of_zero_rows(s3: Any) -> None:
    """O1."""
    put_parquet(join(s3.uri, "in/p0.parquet"), [])
    outcome = run_job(job(s3.uri))
    assert outcome.done == 0
    output = Output(join(s3.uri, "out"))
    assert storage.read_json(output.manifest, Manifest).rows == 0
    assert storage.head(output.success) is not None
    table = pq.read_table(io.BytesIO(storage.read(output.file("p0.parquet"))))
    assert table.num_rows == 0
    assert {"id", "embedding", "status", "reason", "n_tokens", "engine", "rung"} <= set(table.schema.names)
    assert table.schema.field("embedding").type.list_size == 384


def test_an_input_whose_rows_need_no_model_is_answered_without_a_chunk(s3: Any) -> None:
    """O1: rows, but nothing to map."""
    put_parquet(join(s3.uri, "in/p0.parquet"), ["", None, "   "])
    outcome = run_job(job(s3.uri))
    assert outcome.done == 0
    rows = read_output(Output(join(s3.uri, "out")))
    assert [r["status"] for r in rows] == ["empty", "null", "empty"]
    assert all(r["embedding"] is None and r["reason"] for r in rows)


def test_a_single_row_is_one_chunk_of_one_batch(s3: Any) -> None:
    """O1: one item."""
    put_parquet(join(s3.uri, "in/p0.parquet"), ["Return the value."])
    outcome = run_job(job(s3.uri))
    assert outcome.done == 1
    (row,) = read_output(Output(join(s3.uri, "out")))
    assert (row["status"], len(row["embedding"])) == ("ok", 384)


def test_a_chunk_keeps_its_identity_when_another_comes_before_it(s3: Any) -> None:
    """O2: [a, b, c] becomes [z, a, b, c]."""
    rows = list(texts(120))
    write_input(join(s3.uri, "in"), rows)
    few = planned(job(s3.uri, limits={"max_length": 64}, batching={"ladder": [32, 64]}))
    longer = [*rows, *("a row far longer than any other of this input " * 20 for _ in range(4))]
    write_input(join(s3.uri, "in"), longer[:120])
    put_parquet(join(s3.uri, "in/p9.parquet"), list(longer[120:]))
    more = planned(job(s3.uri, batching={"ladder": [32, 64, 128]}))
    assert more.plan.chunks[0].length == 128, "a longer rung now comes first"
    assert more.work.uri != few.work.uri, "no checkpoint of one plan can land in the other"
    before = {c.id: c for c in few.plan.chunks}
    kept = [c for c in more.plan.chunks if c.id in before]
    assert all(before[c.id].spans == c.spans for c in kept), "one id never names two contents"


def test_clearing_one_chunk_recomputes_it_alone_and_gives_equal_bytes(s3: Any) -> None:
    """O2: only chunk b is cleared."""
    write_input(join(s3.uri, "in"), texts(120))
    config = job(s3.uri)
    first = run_job(config)
    output = Output(join(s3.uri, "out"))
    plan = steps.load_plan(first.work)
    assert len(plan.chunks) >= 3
    before = etags(first.work.chunks)
    merged = {k: v for k, v in etags(output.uri).items() if k.endswith(".parquet")}
    cleared = plan.chunks[1]
    storage.delete(item.uri for item in storage.list_objects(first.work.chunk(cleared.id)))
    storage.delete([first.work.merge(group.id) for group in plan.groups])

    again = run_job(config)
    assert again.reused == len(plan.chunks) - 1
    after = etags(first.work.chunks)
    others = {k: v for k, v in before.items() if cleared.id not in k}
    assert {k: after[k] for k in others} == others
    assert {k: v for k, v in etags(output.uri).items() if k.endswith(".parquet")} == merged


def test_an_unfinished_run_has_no_success_and_says_how_far_it_is(s3: Any) -> None:
    """O3: 3 of 4 chunks done."""
    write_input(join(s3.uri, "in"), texts(150))
    made = planned(job(s3.uri, batching={"chunk_slots": 2048}))
    ids = [chunk.id for chunk in made.plan.chunks]
    assert len(ids) >= 2
    run_pack(made.work, made.prepared, made.plan, ids[:-1], StopFlag(), Reporter(made.plan, ids[:-1]))
    status = read_status(made.output.uri)
    assert status_json(status)["chunks"] == {
        "done": len(ids) - 1,
        "reused": 0,
        "running": 0,
        "total": len(ids),
    }
    with pytest.raises(DataError, match=ids[-1]):
        steps.merge(made.work, made.prepared, made.plan)
    assert storage.head(made.output.success) is None
    assert not read_output(made.output)


def test_of_two_runs_on_one_prefix_one_wins_with_all_its_rows(s3: Any) -> None:
    """O3: two runs on one prefix."""
    write_input(join(s3.uri, "in"), texts(40))
    loser = planned(job(s3.uri, embed={"normalize": True}))
    ids = [chunk.id for chunk in loser.plan.chunks]
    run_pack(loser.work, loser.prepared, loser.plan, ids, StopFlag(), Reporter(loser.plan, ids))
    winner = run_job(job(s3.uri, embed={"normalize": False}))
    with pytest.raises(DataError, match="claimed this output"):
        steps.merge(loser.work, loser.prepared, loser.plan)
    rows = read_output(loser.output)
    assert len(rows) == 40
    norms = [sum(x * x for x in r["embedding"]) ** 0.5 for r in rows]
    assert all(abs(norm - 1) > 1e-3 for norm in norms), "every row is the winner's, not normalised"
    assert storage.read(loser.output.success).decode().strip() == winner.prepared.fingerprint


def test_five_thousand_input_files_are_packed_into_few_tasks(tmp_path: Any) -> None:
    """O4."""
    (tmp_path / "in").mkdir()
    for number in range(5000):
        line = json.dumps({"id": number, "text": f"row {number}"})
        (tmp_path / "in" / f"p{number}.jsonl").write_text(line + "\n")
    work, prepared, _ = prepare(job(str(tmp_path)))
    assert len(prepared.files) == 5000
    assert len(prepared.splits) <= 512
    steps.tokenize(work, prepared, [split.id for split in prepared.splits])
    plan, _ = steps.plan(work, prepared, calibrate=False)
    assert len(plan.packs) <= 512
    assert len(plan.groups) <= 512
    assert sum(len(group.files) for group in plan.groups) == 5000
    assert [f.path for f in prepared.files][:3] == ["p0.jsonl", "p1.jsonl", "p2.jsonl"]
