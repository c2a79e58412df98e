"""A job is named by what decides its results, and refused early when it cannot work."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_jobs import MINILM, job, planned, texts, write_input

from staticjob import dataset, steps, storage
from staticjob.config.job import ModelConfig
from staticjob.errors import ConfigError, DataError
from staticjob.models import model_files
from staticjob.models.max_length import max_length
from staticjob.prepare import prepare
from staticjob.records.prepared import Prepared
from staticjob.running.pack import run_pack
from staticjob.running.progress import Reporter
from staticjob.running.watch import StopFlag


def fingerprint(base: Path, **sections: Any) -> str:
    return prepare(job(str(base), **sections))[1].fingerprint


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_input(str(tmp_path / "in"), texts(20))
    return tmp_path


@pytest.mark.parametrize(
    "sections",
    [
        {"name": "other"},
        {"cost": {"gpu_hour": 9.0}},
        {"limits": {"max_error_rate": 0.5}},
        {"airflow": {"schedule": "0 3 * * *"}},
        {"output": {"history_uri": "elsewhere.json"}},
    ],
)
def test_settings_that_change_no_result_keep_the_fingerprint(base: Path, sections: dict[str, Any]) -> None:
    assert fingerprint(base, **sections) == fingerprint(base)


@pytest.mark.parametrize(
    "sections",
    [
        {"limits": {"max_length": 64}, "batching": {"ladder": [32, 64]}},
        {"limits": {"overflow": "refuse"}},
        {"batching": {"token_budget": 1024}},
        {"embed": {"pooling": "cls"}},
        {"model": {"dtype": "bfloat16"}},
        {"input": {"keep": []}},
    ],
)
def test_settings_that_change_the_result_change_the_fingerprint(base: Path, sections: dict[str, Any]) -> None:
    assert fingerprint(base, **sections) != fingerprint(base)


def test_a_changed_input_object_changes_the_fingerprint_and_the_work_prefix(base: Path) -> None:
    """Invariant 4: work of different inputs is never mixed."""
    before = prepare(job(str(base)))
    write_input(str(base / "in"), [*texts(19), "another last row"])
    after = prepare(job(str(base)))
    assert after[1].fingerprint != before[1].fingerprint
    assert after[0].uri != before[0].uri


def test_another_model_under_the_same_path_changes_the_fingerprint(base: Path, tmp_path: Path) -> None:
    source = model_files.resolve(ModelConfig(path=MINILM))
    copy = tmp_path / "model"
    shutil.copytree(source, copy)
    original = fingerprint(base, model={"path": str(copy)})
    assert original == fingerprint(base), "the same files elsewhere are the same model"
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-5}))
    assert fingerprint(base, model={"path": str(copy)}) != original


def test_a_model_that_changed_after_prepare_is_neither_tokenized_with_nor_run(base: Path) -> None:
    source = model_files.resolve(ModelConfig(path=MINILM))
    model_dir = base / "model"
    shutil.copytree(source, model_dir)
    made = planned(job(str(base), model={"path": str(model_dir)}))
    later, _, _ = prepare(job(str(base), model={"path": str(model_dir)}, output={"uri": f"{base}/later"}))
    config = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps({**config, "note": "other"}))
    ids = [chunk.id for chunk in made.plan.chunks]
    with pytest.raises(DataError, match="is not the one this job was prepared with"):
        steps.tokenize(later, steps.load_prepared(later), [made.prepared.splits[0].id])
    with pytest.raises(DataError, match="is not the one this job was prepared with"):
        run_pack(made.work, made.prepared, made.plan, ids, StopFlag(), Reporter(made.plan, ids))


def test_preparing_again_keeps_the_record_and_says_so(base: Path) -> None:
    work, first, reused = prepare(job(str(base)))
    assert not reused
    again_work, again, reused = prepare(job(str(base)))
    assert reused
    assert (again_work, again) == (work, first)
    assert storage.read_json(work.job, Prepared) == first


def test_a_job_has_no_more_splits_than_its_scheduler_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(str(tmp_path / "in"), texts(12), files=6)
    monkeypatch.setattr(dataset, "plan_splits", partial(dataset.plan_splits, target_bytes=1))
    assert len(prepare(job(str(tmp_path), output={"uri": f"{tmp_path}/a"}))[1].splits) > 3
    limited = job(str(tmp_path), airflow={"max_mapped_tasks": 3}, output={"uri": f"{tmp_path}/b"})
    assert len(prepare(limited)[1].splits) <= 3


def test_a_new_error_ceiling_reaches_a_job_that_is_already_prepared(base: Path) -> None:
    prepare(job(str(base)))
    work, record, reused = prepare(job(str(base), limits={"max_error_rate": 0.5}))
    assert reused
    assert record.config.limits.max_error_rate == 0.5
    assert storage.read_json(work.job, Prepared) == record


def test_a_forecast_with_other_settings_leaves_the_running_job_as_it_is(base: Path) -> None:
    work, _, _ = prepare(job(str(base)))
    before = [storage.read(uri) for uri in (work.job, work.config, work.started)]
    _, forecast, _ = prepare(job(str(base), limits={"max_error_rate": 1.0}), run=False)
    assert forecast.config.limits.max_error_rate == 1.0
    assert [storage.read(uri) for uri in (work.job, work.config, work.started)] == before


def test_a_limit_beyond_the_models_positions_is_refused(base: Path) -> None:
    with pytest.raises(ConfigError, match="513 is beyond the 512 positions") as error:
        prepare(job(str(base), limits={"max_length": 513}, batching={"ladder": [513]}))
    assert "\n" not in str(error.value)


def test_an_automatic_limit_is_the_models_own(base: Path) -> None:
    model_dir = model_files.resolve(ModelConfig(path=MINILM))
    config = job(str(base), limits={"max_length": "auto"})
    assert max_length(config, model_dir) == 256, "all-MiniLM-L6-v2's sentence_bert_config.json says 256"


def test_a_missing_input_is_refused_naming_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="in"):
        prepare(job(str(tmp_path)))


def test_a_missing_model_is_refused_naming_it(base: Path) -> None:
    with pytest.raises(ConfigError, match="no/such/model"):
        prepare(job(str(base), model={"path": "no/such/model/here"}))
