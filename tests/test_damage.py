"""Damaged and foreign objects: each is named in one line, or done again where that loses nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fabricate import fabricate
from small_jobs import MINILM, Planned, job, planned, texts, write_input

from staticjob import claim, storage
from staticjob.chunk import read_kept
from staticjob.config.job import ModelConfig
from staticjob.errors import ConfigError, DataError
from staticjob.finish import _remove_left_overs
from staticjob.layout import Output, join
from staticjob.merge import merge_group
from staticjob.merging.gather import result_heads
from staticjob.models import model_files
from staticjob.planning import history
from staticjob.prepare import prepare
from staticjob.records.commit import Commit
from staticjob.records.prepared import Started
from staticjob.running import results
from staticjob.running.assemble import batches
from staticjob.verifying.samples import read_samples


@pytest.fixture
def small(tmp_path: Path) -> Planned:
    write_input(str(tmp_path / "in"), texts(40))
    return planned(job(str(tmp_path)))


def truncate(uri: str, size: int) -> None:
    storage.put(uri, storage.read(uri)[:size])


@pytest.mark.parametrize("size", [0, 8, 500, -1])
def test_a_damaged_flush_is_computed_again_and_the_one_before_it_kept(small: Planned, size: int) -> None:
    chunk = next(c for c in small.plan.chunks if c.batches >= 2)
    for index, batch in enumerate(list(batches(small.work, chunk))[:2]):
        table = results.batch_table(batch.rows, chunk.length, "static", {}, {})
        storage.put(
            small.work.chunk(chunk.id, f"flush-{index:06d}-{index + 1:06d}.arrow"), results.to_ipc(table)
        )
    assert read_kept(small.work, chunk).batches == 2
    truncate(small.work.chunk(chunk.id, "flush-000001-000002.arrow"), size)
    assert read_kept(small.work, chunk).batches == 1


def test_a_flush_that_another_worker_removes_meanwhile_is_no_failure(
    small: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = small.plan.chunks[0]
    flush = small.work.chunk(chunk.id, "flush-000000-000001.arrow")
    storage.put(flush, b"x")
    listed = storage.list_objects(small.work.chunk(chunk.id))
    storage.delete([flush])
    monkeypatch.setattr(storage, "list_objects", lambda _: listed)
    assert read_kept(small.work, chunk).batches == 0


@pytest.mark.parametrize("suffix", ["part_rows", "part_ids"])
@pytest.mark.parametrize("size", [0, 7, -1])
def test_a_part_that_ends_early_is_named(small: Planned, suffix: str, size: int) -> None:
    chunk = max(small.plan.chunks, key=lambda c: c.spans[0].token_stop)
    part = chunk.spans[0].part
    truncate(getattr(small.work, suffix)(part), size)
    with pytest.raises(DataError, match=rf"^part {part}: .*delete .* and run the job again$"):
        list(batches(small.work, chunk))
    with pytest.raises(DataError, match=rf"^part {part}: .*delete .* and run the job again$"):
        list(read_samples(small.work, chunk, np.arange(chunk.rows)))


@pytest.mark.parametrize("size", [0, 5, 60])
def test_a_result_without_its_head_is_named(tmp_path: Path, size: int) -> None:
    made = fabricate(str(tmp_path), rows=(3,))
    chunk = made.plan.chunks[0]
    commit = storage.read_json(made.work.commit(chunk.id), Commit)
    truncate(made.work.chunk(chunk.id, commit.result), size)
    with pytest.raises(DataError, match=rf"{commit.result}: damaged, .* run it again$"):
        result_heads(made.work, {chunk.id: commit})


@pytest.mark.parametrize("gone", [True, False])
def test_a_result_that_ends_early_or_is_gone_is_named(tmp_path: Path, gone: bool) -> None:
    made = fabricate(str(tmp_path), rows=(3,))
    chunk = made.plan.chunks[0]
    commit = storage.read_json(made.work.commit(chunk.id), Commit)
    uri = made.work.chunk(chunk.id, commit.result)
    if gone:
        storage.delete([uri])
    else:
        truncate(uri, commit.blocks[0].offset + 8)
    with pytest.raises(DataError, match=rf"{commit.result}: .*delete the chunk's folder and run it again$"):
        merge_group(made.work, made.prepared, made.plan, made.plan.groups[0])


def test_a_record_cut_short_is_named_with_what_to_do(tmp_path: Path) -> None:
    uri = str(tmp_path / "started.json")
    storage.put(uri, b'{"started": "2026')
    with pytest.raises(DataError, match=r"started\.json: damaged .*; delete it and run again$"):
        storage.read_json(uri, Started)


def test_a_history_of_another_version_costs_the_rates_and_not_the_job(tmp_path: Path) -> None:
    uri = str(tmp_path / "history.json")
    storage.put(uri, b'{"model_digest": "m", "rates": null, "from_the_future": 1}')
    assert history.read(uri) is None


def test_left_overs_of_a_run_of_another_version_are_removed(tmp_path: Path) -> None:
    write_input(str(tmp_path / "in"), texts(4))
    _, first, _ = prepare(job(str(tmp_path)))
    output = Output(first.config.output.uri)
    record = output.work(first.fingerprint).job
    storage.put(record, json.dumps({**json.loads(storage.read(record)), "from_the_future": 1}).encode())
    for file in first.files:
        storage.put(output.file(file.output), b"rows")
    (tmp_path / "in" / "p0.parquet").unlink()
    _, second, _ = prepare(job(str(tmp_path)))
    _remove_left_overs(claim.hold(output.uri, second.fingerprint), second)
    assert [storage.head(output.file(f.output)) is None for f in first.files] == [True, False]


def break_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text("{broken")


def break_config(model: Path) -> None:
    (model / "config.json").write_text("[]")


def break_limit(model: Path) -> None:
    (model / "sentence_bert_config.json").write_text("{broken")


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (break_tokenizer, "tokenizer.json"),
        (break_config, "config.json"),
        (break_limit, "sentence_bert_config.json"),
    ],
)
def test_a_damaged_model_file_is_named(tmp_path: Path, damage: Callable[[Path], None], name: str) -> None:
    write_input(str(tmp_path / "in"), texts(4))
    model = tmp_path / "model"
    shutil.copytree(model_files.resolve(ModelConfig(path=MINILM)), model)
    damage(model)
    with pytest.raises(ConfigError, match=f"^model file {model / name}: "):
        planned(job(str(tmp_path), model={"path": str(model)}, limits={"max_length": "auto"}))


def test_a_kept_column_with_a_results_name_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    storage.put(join(str(tmp_path), "in", "p.jsonl"), b'{"text": "some words", "status": 1}\n')
    with pytest.raises(ConfigError, match="'status' has the name of a result column"):
        planned(job(str(tmp_path), input={"keep": ["status"]}))
