"""The nine invariants of the design, each on one real small job run from start to end.

Finer tests of the same behaviours lie beside their modules (`test_chunk`, `test_merge`,
`test_finish`, `test_verify`, …); here each has one test that fails when the behaviour is gone.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fabricate import fabricate
from small_jobs import MINILM, job, read_output, texts, write_input

from staticjob import storage
from staticjob.config.job import JobConfig, ModelConfig
from staticjob.engine.static_engine import StaticEngine
from staticjob.errors import ConfigError, DataError
from staticjob.layout import Output
from staticjob.ledger import Ledger
from staticjob.local_run import Outcome, run_job
from staticjob.merge import merge_group
from staticjob.models import model_files
from staticjob.records.commit import Commit
from staticjob.records.plan import Plan
from staticjob.records.status import Status
from staticjob.running import results
from staticjob.storage import local
from staticjob.verify import verify

SECRET = "wJalrXUtnFEMI-not-a-real-key"
MARKUP = "<img src=x onerror=alert(1)>"
LONG = "word " * 300


@dataclass
class Watched:
    """A finished job, the texts it read, and what happened meanwhile."""

    config: JobConfig
    outcome: Outcome
    plan: Plan
    texts: list[list[str | None]]
    shapes: list[tuple[int, int]] = field(default_factory=list)
    useful: int = 0
    written: list[str] = field(default_factory=list)

    @property
    def output(self) -> Output:
        return Output(self.config.output.uri)

    def rows(self, file: int) -> list[dict[str, Any]]:
        uri = self.output.file(self.outcome.prepared.files[file].output)
        rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(storage.read(uri))).to_pylist()
        return rows


def write_inputs(folder: Path) -> list[list[str | None]]:
    """Three files of shuffled lengths: Parquet, JSON Lines with one bad line, Parquet; returns texts."""
    short = list(texts(48, seed=5))
    files: list[list[str | None]] = [
        [*short[:20], None, "", LONG],
        [*short[20:33], MARKUP],
        [*short[33:], "   ", None],
    ]
    for number, rows in enumerate(files):
        random.Random(number).shuffle(rows)
        uri = str(folder / f"p{number}")
        ids = [f"f{number}r{row}" for row in range(len(rows))]
        if number == 1:
            lines = [json.dumps({"id": i, "text": t}) for i, t in zip(ids, rows, strict=True)]
            lines.insert(4, f'{{"id": "{MARKUP}", "text": ')
            rows.insert(4, None)
            storage.put(f"{uri}.jsonl.gz", gzip.compress("\n".join(lines).encode(), mtime=0))
        else:
            sink = io.BytesIO()
            pq.write_table(pa.table({"id": ids, "text": pa.array(rows, pa.string())}), sink)
            storage.put(f"{uri}.parquet", sink.getvalue())
    return files


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """One whole job, watched: every rectangle that is run and every object that is written."""
    base = tmp_path_factory.mktemp("invariants")
    rows = write_inputs(base / "in")
    shapes: list[tuple[int, int]] = []
    written: list[str] = []
    useful = [0]
    stream, put, put_if_absent, writer = StaticEngine.stream, local.put, local.put_if_absent, local.writer

    def stream_watched(self: StaticEngine, batches: Any) -> Any:
        for batch, result, seconds in stream(self, batches):
            shapes.append(batch.ids.shape[::-1])
            useful[0] += int(batch.lengths.sum())
            yield batch, result, seconds

    def log_first(function: Any) -> Any:
        def logged(uri: str, *rest: Any) -> Any:
            written.append(uri)
            return function(uri, *rest)

        return logged

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setattr("staticjob.steps.can_run", lambda target: False)  # no calibration among the shapes
        patch.setattr(StaticEngine, "stream", stream_watched)
        for name, function in (("put", put), ("put_if_absent", put_if_absent), ("writer", writer)):
            patch.setattr(local, name, log_first(function))
        config = job(str(base), limits={"max_length": 128, "max_error_rate": 0.1})
        outcome = run_job(config)
    plan = storage.read_json(outcome.work.plan, Plan)
    return Watched(config, outcome, plan, rows, shapes, useful[0], written)


def test_invariant_1_output_file_k_has_input_file_ks_rows_in_order_each_with_its_own_result(
    done: Watched,
) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(model_files.resolve(ModelConfig(path=MINILM))), device="cpu")
    model.max_seq_length = 128
    for file, rows in enumerate(done.texts):
        found = done.rows(file)
        assert len(found) == len(rows)
        ids = [row["id"] for row in found if row["id"] is not None]
        assert ids == [f"f{file}r{n}" for n in range(len(ids))]
        answered = [(row, text) for row, text in zip(found, rows, strict=True) if row["embedding"]]
        lengths = [row["n_tokens"] for row, _ in answered]
        assert lengths != sorted(lengths)
        assert lengths != sorted(lengths, reverse=True), "sorted input would not notice a lost permutation"
        expected = model.encode([text for _, text in answered], normalize_embeddings=True)
        np.testing.assert_allclose([row["embedding"] for row, _ in answered], expected, atol=2e-6)


def test_invariant_2_merge_refuses_a_missing_and_a_doubled_row_by_name(tmp_path: Path) -> None:
    for case in ("missing", "doubled"):
        made = fabricate(tmp_path / case, commit=False)
        for number, chunk in enumerate(made.plan.chunks):
            table = made.tables[chunk.id]
            if number == 1:
                again = pa.concat_tables([table, table.slice(0, 1)])
                table = table.slice(1) if case == "missing" else results.sort_rows(again)
            made.commit_chunk(number, table)
        row = made.tables["c001"].slice(0, 1).to_pylist()[0]
        with pytest.raises(DataError, match=rf"1 rows {case} \(p{row['file']}.parquet row {row['row']}\)"):
            merge_group(made.work, made.prepared, made.plan, made.group())


def test_invariant_3_every_row_is_answered_and_a_bad_row_stops_nothing(done: Watched) -> None:
    for file, rows in enumerate(done.texts):
        for row, text in zip(done.rows(file), rows, strict=True):
            assert row["status"] in set(Status)
            assert (row["embedding"] is not None) == (row["status"] in {Status.OK, Status.TRUNCATED})
            assert bool(row["reason"]) == (row["status"] != Status.OK)
            if row["status"] == Status.ERROR:
                assert (file, text) == (1, None)
            else:
                wanted = {None: Status.NULL, "": Status.EMPTY, "   ": Status.EMPTY, LONG: Status.TRUNCATED}
                assert row["status"] == wanted.get(text, Status.OK)
    assert done.outcome.manifest.statuses[Status.ERROR] == 1
    assert sum(done.outcome.manifest.statuses.values()) == sum(len(rows) for rows in done.texts)


def test_invariant_4_run_again_recomputes_nothing_and_changes_no_result(
    done: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def results_of() -> dict[str, str]:
        found = storage.list_objects(done.output.uri)
        return {
            o.uri: o.version for o in found if re.search(r"(\.arrow|\.ids|\.parquet|commit\.json)$", o.uri)
        }

    def refuse(*_: Any) -> None:
        raise AssertionError("the engine was started although nothing is left to compute")

    before = results_of()
    monkeypatch.setattr(StaticEngine, "__init__", refuse)
    again = run_job(done.config)
    assert again.reused == len(done.plan.chunks)
    assert results_of() == before


def test_invariant_4_another_fingerprint_shares_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("staticjob.steps.can_run", lambda target: False)
    write_input(f"{tmp_path}/in", texts(12), files=1)
    first = run_job(job(str(tmp_path)))
    second = run_job(job(str(tmp_path), embed={"normalize": False}))
    assert first.work.uri != second.work.uri
    assert (second.reused, second.done) == (0, first.done)
    lengths = np.linalg.norm([row["embedding"] for row in read_output(Output(f"{tmp_path}/out"))], axis=1)
    assert (np.abs(lengths - 1) > 1e-3).all(), "a row of the first run is among those of the second"


def test_invariant_5_markers_are_written_after_their_data_and_success_last(done: Watched) -> None:
    order = {}
    for number, uri in enumerate(done.written):
        order[uri] = number
    work, output = done.outcome.work, done.output
    for chunk in done.plan.chunks:
        commit = storage.read_json(work.commit(chunk.id), Commit)
        assert order[work.chunk(chunk.id, commit.result)] < order[work.commit(chunk.id)]
    for group in done.plan.groups:
        for file in group.files:
            path = output.file(done.outcome.prepared.files[file].output)
            assert max(order[work.commit(c.id)] for c in done.plan.chunks) < order[path]
            assert order[path] < order[work.merge(group.id)]
    assert max(order.values()) == order[output.success]
    assert order[work.split("s00000")] > order[work.answered("s00000")]


def test_invariant_6_only_planned_shapes_run_and_each_as_often_as_planned(done: Watched) -> None:
    planned = [(r.length, r.batch) for r in done.plan.rungs for _ in range(r.batches)]
    assert sorted(done.shapes) == sorted(planned)
    lengths = [length for length, _ in done.shapes]
    assert lengths == sorted(lengths, reverse=True), "longest first: an out-of-memory shows at once"


def test_invariant_7_rows_beside_other_neighbours_give_the_same_bits(done: Watched) -> None:
    report = verify(done.outcome.work, done.outcome.prepared, done.plan, 1000, seed=1)
    assert report.compared == 2 * sum(r.rows for r in done.plan.rungs)
    assert (report.equal, report.max_difference) == (report.compared, 0.0)


def test_invariant_8_the_ledger_sums_for_every_chunk_rung_and_the_job(done: Watched) -> None:
    commits = [storage.read_json(done.outcome.work.commit(c.id), Commit) for c in done.plan.chunks]
    for rung in done.plan.rungs:
        own = [c.ledger for c in commits if (c.length, c.batch) == (rung.length, rung.batch)]
        assert sum(own, Ledger()) == rung.ledger
        assert rung.ledger.slots == rung.length * rung.batch * rung.batches
    paid = done.outcome.manifest.ledger
    assert paid == done.plan.ledger == sum((c.ledger for c in commits), Ledger())
    assert paid.slots == sum(length * batch for length, batch in done.shapes)
    published = [row for file in range(3) for row in done.rows(file) if row["embedding"]]
    assert paid.useful == done.useful == sum(row["n_tokens"] for row in published)
    with pytest.raises(ValueError, match="ledger does not sum"):
        Ledger(useful=3, padding=1, slots=5)


def test_invariant_9_pickled_weights_are_refused_unless_the_job_says_otherwise(tmp_path: Path) -> None:
    source = model_files.resolve(ModelConfig(path=MINILM))
    for path in source.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            target = tmp_path / "model" / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"pickle")
    config = job(str(tmp_path), model={"path": str(tmp_path / "model")})
    with pytest.raises(ConfigError, match=r"no \.safetensors files"):
        StaticEngine(tmp_path / "model", config, [])


def test_invariant_9_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    source = model_files.resolve(ModelConfig(path=MINILM))
    model_dir, ran = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(source, model_dir)
    (model_dir / "foreign.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    config = json.loads((model_dir / "config.json").read_text())
    foreign = {"AutoConfig": "foreign.Config", "AutoModel": "foreign.Model"}
    (model_dir / "config.json").write_text(
        json.dumps(config | {"model_type": "foreign", "auto_map": foreign})
    )
    with pytest.raises(ConfigError, match="contains custom code"):
        StaticEngine(model_dir, job(str(tmp_path), model={"path": str(model_dir)}), [])
    assert not ran.exists()


def test_invariant_9_no_secret_is_stored_and_markup_of_the_data_is_escaped(done: Watched) -> None:
    for item in storage.list_objects(done.output.uri):
        assert SECRET.encode() not in storage.read(item.uri), item.uri
    page = storage.read(done.output.report_html).decode()
    assert MARKUP not in page
