"""What a job file may say, and the one line that answers what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from staticjob.config.job import JobConfig
from staticjob.config.job_file import apply_override, job_with_defaults, read_job_file, validate_job
from staticjob.errors import ConfigError


def load(*overrides: str) -> JobConfig:
    data: dict[str, Any] = {
        "name": "small",
        "model": {"path": "some/model"},
        "input": {"uri": "in", "columns": {"text": "text"}},
        "output": {"uri": "out"},
    }
    for assignment in overrides:
        apply_override(data, assignment)
    return validate_job(data, "job.yaml")


@pytest.mark.parametrize("key", ["input.uri", "output.uri", "output.history_uri", "model.path"])
@pytest.mark.parametrize(
    "uri", ["''", "' '", "gs://b/x", "s3a://b/x", "S3://b/x", "s3:/b/x", "s3://", "s3:///x"]
)
def test_a_uri_that_would_be_taken_for_a_folders_name_is_refused(key: str, uri: str) -> None:
    with pytest.raises(ConfigError, match=rf"^job.yaml: {key}: "):
        load(f"{key}={uri}")


@pytest.mark.parametrize("uri", ["s3://b//x", "s3://b/x//y/", "s3://b/./x", "s3://b/x/../y"])
def test_an_output_that_stores_spell_in_several_ways_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"^job.yaml: output.uri: .* between slashes"):
        load(f"output.uri={uri}")
    assert load(f"input.uri={uri}").input.uri == uri


@pytest.mark.parametrize(
    "uri", ["s3://bucket", "s3://bucket/a b/{date}/", "file:///data/x", "data/x:1", "/data"]
)
def test_a_uri_of_a_known_kind_is_taken_literally(uri: str) -> None:
    assert load(f"output.uri='{uri}'").output.uri == uri


def test_a_path_that_begins_with_a_tilde_lies_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert load("output.uri=~/out").output.uri == str(Path("/home/someone/out"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cost.gpu_hour=.inf", "cost.gpu_hour inf: expected a finite number"),
        ("model.device_memory_gib=.inf", "model.device_memory_gib inf: expected a finite number"),
        ("limits.max_error_rate=.nan", "limits.max_error_rate nan: expected a finite number"),
        ("limits.max_error_rate=3", "limits.max_error_rate 3: expected at most 1"),
        ("model.device=tpu", "model.device 'tpu': expected text that matches ^(auto|cpu|cuda(:\\d+)?)$"),
        ("batching.token_budget=0", "batching.token_budget 0: expected 'auto' or more than 0"),
        ("limits.max_length=lots", "limits.max_length 'lots': expected 'auto' or a whole number"),
        ("limits.max_length=true", "limits.max_length True: expected 'auto' or a whole number"),
        ("limits.max_length=512.0", "limits.max_length 512.0: expected 'auto' or a whole number"),
        ("batching.ladder=[true, 8]", "batching.ladder True: expected a whole number"),
        ("airflow.retries=false", "airflow.retries False: expected a whole number"),
        ("cost.gpu_hour=true", "cost.gpu_hour True: expected a number"),
        ("limits.max_error_rate=false", "limits.max_error_rate False: expected a number"),
        ("input.keep=id", "input.keep 'id': expected 'all' or a list"),
        ("input.columns.text=", "input.columns.text: expected text"),
        ("limits=[]", "limits: expected a section"),
        (
            "task=embedd",
            "task 'embedd': expected 'classify', 'embed', 'generate', 'logprob', 'rerank' or 'reward'; "
            "did you mean 'embed'?",
        ),
    ],
)
def test_a_bad_value_is_named_once_with_its_key_as_the_job_file_spells_it(
    override: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(override)
    assert str(caught.value) == f"job.yaml: {message}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("airflow.schedule='0 2 * *'", "airflow.schedule '0 2 * *': not a cron expression; give five fields"),
        ("airflow.schedule=''", "airflow.schedule '': not a cron expression; give five fields"),
        ("airflow.schedule='@once'", "airflow.schedule '@once': not a cron expression; give five fields"),
        ("airflow.timezone=Mars", "airflow.timezone 'Mars': no such time zone"),
        ("airflow.timezone=Europe", "airflow.timezone 'Europe': no such time zone"),
    ],
)
def test_a_schedule_that_airflow_would_refuse_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(override)
    assert str(caught.value).startswith(f"job.yaml: {message}")


@pytest.mark.parametrize("schedule", ["0 2 * * *", "'@daily'", "'@quarterly'", "null"])
def test_a_schedule_is_a_cron_expression_or_one_of_airflows_presets_or_none(schedule: str) -> None:
    assert load(f"airflow.schedule={schedule}", "airflow.timezone=Europe/Berlin").airflow


@pytest.mark.parametrize(
    "override", ["generate.max_new_tokens=500", "rerank.group_by=id", "logprob.token_logprobs=true"]
)
def test_options_of_another_task_are_refused(override: str) -> None:
    section = override.partition(".")[0]
    with pytest.raises(
        ConfigError, match=rf"^job.yaml: {section}: options of another task than embed; leave"
    ):
        load(override)


def test_a_job_written_out_with_all_defaults_is_the_same_job() -> None:
    job = load("task=classify")
    assert validate_job(job.model_dump(mode="json"), "job.yaml") == job


def test_a_key_that_stands_twice_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("limits: {max_length: 8}\nname: a\nlimits: {overflow: refuse}\n")
    with pytest.raises(ConfigError, match=r"not valid YAML at line 3: the key 'limits' stands there twice"):
        read_job_file(tmp_path / "job.yaml")


def test_an_unknown_placeholder_is_refused_without_a_date_too(tmp_path: Path) -> None:
    text = "{name: a, model: {path: m}, input: {uri: in, columns: {text: t}}, output: {uri: 'out/{day}'}}"
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"output\.uri: unknown placeholder \{day\}"):
        job_with_defaults(tmp_path / "job.yaml")
