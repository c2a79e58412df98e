"""DAG files: which DAGs they make of a folder of jobs, with which tasks, parameters and errors."""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, Asset, AssetAlias, CronDataIntervalTimetable, Param
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from airflow_home import REPOSITORY
from staticjob_airflow.adhoc import form, job_from_form
from staticjob_airflow.jobs import load_folder

from staticjob.config.job import JobConfig
from staticjob.config.job_file import validate_job
from staticjob.config.options import GenerateConfig, HandoverConfig
from staticjob.errors import ConfigError

STEPS = ["prepare", "tokenize", "plan", "groups", "chunk", "merge", "finish"]
SLOW = ["torch", "transformers", "pyarrow", "tokenizers", "numpy", "fastapi"]
REQUIRED = {
    "name": "mine",
    "model.path": "m",
    "input.uri": "s3://b/in",
    "input.columns": {"text": "body"},
    "output.uri": "s3://b/out",
}


def _job(name: str, **changes: Any) -> dict[str, Any]:
    job = {
        "name": name,
        "model": {"path": "m"},
        "input": {"uri": "s3://b/in/{date}", "columns": {"text": "text"}},
        "output": {"uri": "s3://b/out/{date}/"},
        "airflow": {"schedule": "0 2 * * *", "timezone": "Asia/Tokyo"},
    }
    return {**job, **changes}


def _write(folder: Path, *jobs: dict[str, Any]) -> Path:
    for job in jobs:
        (folder / f"{job['name']}.yaml").write_text(yaml.safe_dump(job))
    return folder


def _emits(dag: DAG, alias: str, uri: str) -> None:
    """An asset that a task names itself could be another DAG's, and Airflow would refuse to run the task."""
    finish = dag.get_task("finish")
    assert finish.outlets == [AssetAlias(alias)]
    assert finish.asset == Asset(uri)


def _bag(file: str) -> DagBag:
    return DagBag(dag_folder=str(REPOSITORY / "dags" / file))


def test_each_job_file_with_an_airflow_block_is_one_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATICJOB_JOBS", str(_write(tmp_path, _job("a"), _job("b"), _job("c", airflow=None))))
    bag = _bag("staticjob_jobs.py")
    assert bag.import_errors == {}
    assert sorted(bag.dags) == ["a", "b"]


def test_every_job_file_of_the_repository_is_a_dag() -> None:
    folder = load_folder(REPOSITORY / "jobs")
    assert folder.errors == ()
    assert sorted(folder.dags) == sorted(path.stem for path in (REPOSITORY / "jobs").iterdir())


def test_a_broken_job_file_shows_as_an_import_error_and_hides_no_other_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATICJOB_JOBS", str(_write(tmp_path, _job("good"), _job("bad", limit={}))))
    jobs = _bag("staticjob_jobs.py")
    assert sorted(jobs.dags) == ["good"]
    assert jobs.import_errors == {}
    (error,) = _bag("staticjob_job_errors.py").import_errors.values()
    assert f"{tmp_path}/bad.yaml" in error
    assert "unknown key 'limit'; did you mean 'limits'?" in error


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (
            _job("x", airflow={"schedule": "every night"}),
            "x.yaml: airflow.schedule 'every night': not a cron",
        ),
        # Airflow would accept it and never run it.
        (_job("x", airflow={"schedule": "0 2 30 2 *"}), "x.yaml: airflow.schedule '0 2 30 2 *': not a cron"),
        (_job("x", airflow={"timezone": "Mars/Base"}), "x.yaml: airflow.timezone 'Mars/Base': no such"),
        (_job("x", input={"uri": "s3://b/{day}", "columns": {"text": "t"}}), "unknown placeholder {day}"),
        (_job("staticjob_adhoc"), "is taken by another DAG"),
    ],
)
def test_what_would_fail_at_run_time_is_an_error_of_its_file(
    tmp_path: Path, job: dict[str, Any], message: str
) -> None:
    found = load_folder(_write(tmp_path, job, _job("other")))
    assert list(found.dags) == ["other"]
    assert len(found.errors) == 1
    assert message in found.errors[0]


def test_whatever_is_wrong_with_one_file_hides_no_other_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_alerts.py").write_text("def page(context:\n")
    _write(tmp_path, _job("good"), _job("late", airflow={"on_failure": "broken_alerts.page"}))
    (tmp_path / "date.yaml").write_text("airflow: {start_date: 2026-02-30}\n")
    found = load_folder(tmp_path)
    assert list(found.dags) == ["good"]
    day, alerts = found.errors
    assert day == f"job file {tmp_path}/date.yaml: not valid YAML: day is out of range for month"
    assert alerts.startswith(f"{tmp_path}/late.yaml: SyntaxError:")


def test_a_job_file_may_end_in_yml(tmp_path: Path) -> None:
    _write(tmp_path, _job("a"))
    (tmp_path / "b.yml").write_text(yaml.safe_dump(_job("b")))
    assert list(load_folder(tmp_path).dags) == ["a", "b"]


def test_two_files_of_one_name_make_one_dag_and_one_error(tmp_path: Path) -> None:
    _write(tmp_path, _job("a"))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(_job("a")))
    found = load_folder(tmp_path)
    assert list(found.dags) == ["a"]
    assert found.errors == (f"{tmp_path}/b.yaml: name 'a' is taken by another DAG; choose another name",)


def test_a_missing_jobs_folder_is_named(tmp_path: Path) -> None:
    (error,) = load_folder(tmp_path / "nowhere").errors
    assert f"{tmp_path}/nowhere: not found" in error


def test_a_job_runs_once_per_data_interval_in_its_time_zone_without_catching_up(tmp_path: Path) -> None:
    airflow = {
        "schedule": "0 2 * * *",
        "timezone": "Asia/Tokyo",
        "max_active_runs": 2,
        "start_date": "2026-01-05",
    }
    dag = load_folder(_write(tmp_path, _job("a", airflow=airflow))).dags["a"]
    assert dag.timetable == CronDataIntervalTimetable("0 2 * * *", timezone="Asia/Tokyo")
    assert dag.catchup is False
    assert dag.max_active_runs == 2
    assert dag.start_date is not None
    assert dag.start_date == dt.datetime.fromisoformat("2026-01-05T00:00:00+09:00")


def test_the_tasks_are_the_steps_and_chunks_run_in_the_pool_and_queue_of_the_gpu(tmp_path: Path) -> None:
    airflow = {"pool": "h100", "queue": "gpus", "cpu_queue": "cpus", "retries": 5}
    dag = load_folder(_write(tmp_path, _job("a", airflow=airflow))).dags["a"]
    assert {t.task_id: t.downstream_task_ids for t in dag.tasks} == {
        "prepare": {"tokenize", "plan", "chunk", "merge", "finish"},  # all take its work URI
        "tokenize": {"plan"},
        "plan": {"groups", "chunk"},
        "groups": {"merge"},
        "chunk": {"merge"},
        "merge": {"finish"},
        "finish": set(),
    }
    assert {t.task_id: t.queue for t in dag.tasks} == {s: "gpus" if s == "chunk" else "cpus" for s in STEPS}
    assert {t.task_id for t in dag.tasks if t.pool == "h100"} == {"chunk"}
    assert {t.task_id for t in dag.tasks if t.is_mapped} == {"tokenize", "chunk", "merge"}
    assert {t.retries for t in dag.tasks} == {5}
    assert all(t.retry_exponential_backoff for t in dag.tasks)


def _sweep() -> dict[str, Any]:
    return _job(
        "s",
        sweep={"limits.max_length": [64, 128], "model.path": ["m", "n"]},
        input={"uri": "s3://b/in/{date}", "columns": {"text": "text"}, "keep": ["kind"]},
        task="classify",
        metrics=[{"metric": "accuracy", "gold": "kind"}],
    )


def test_a_sweeps_file_is_a_dag_whose_steps_are_mapped_over_all_points(tmp_path: Path) -> None:
    dag = load_folder(_write(tmp_path, _sweep())).dags["s"]
    assert dag.description == "classify: 4 points of limits.max_length, model.path"
    steps = {"prepare", "tokenize", "plan", "chunk", "merge", "finish_point", "finish"}
    assert {t.task_id for t in dag.tasks} == {*steps, "points", "packs", "groups"}
    assert {t.task_id for t in dag.tasks if t.is_mapped} == steps - {"prepare", "finish"}
    assert {t.task_id for t in dag.tasks if t.pool == "gpu"} == {"chunk"}
    _emits(dag, "s", "s3://b/out")
    again = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    assert sorted(again.task_ids) == sorted(dag.task_ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sweep": {"limits.max_length": 64}}, "s.yaml: sweep: expected fields with lists of values"),
        ({"sweep": {"limits.max_lenth": [64]}}, "did you mean 'max_length'?"),
        ({"metrics": [{"metric": "accuracy"}]}, "s.yaml: metrics.0: gold is required"),
    ],
)
def test_a_sweep_that_does_not_fit_is_an_error_of_its_file(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    (error,) = load_folder(_write(tmp_path, _sweep() | change)).errors
    assert message in error


def test_the_output_of_all_dates_is_one_asset(tmp_path: Path) -> None:
    dag = load_folder(_write(tmp_path, _job("a"))).dags["a"]
    _emits(dag, "a", "s3://b/out")


def test_dag_files_and_the_plugin_load_neither_torch_nor_anything_else_slow_to_import(tmp_path: Path) -> None:
    _write(tmp_path, _job("a"), _sweep())
    code = (
        "import sys, json, runpy, pathlib, staticjob_plugin\n"
        "for file in sorted(pathlib.Path('dags').glob('*.py')): runpy.run_path(str(file))\n"
        f"print(json.dumps([name for name in {SLOW} if name in sys.modules]))"
    )
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{REPOSITORY / 'plugins'}:{REPOSITORY}",
        "STATICJOB_JOBS": str(tmp_path),
        "AIRFLOW_HOME": str(tmp_path / "home"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_every_dag_survives_airflows_serialization(tmp_path: Path) -> None:
    dags = [
        *load_folder(_write(tmp_path, _job("a"))).dags.values(),
        *_bag("staticjob_adhoc.py").dags.values(),
    ]
    for dag in dags:
        again = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
        assert sorted(again.task_ids) == sorted(STEPS)


@pytest.mark.parametrize("value", ["31.1.2026", 5])
def test_a_date_that_is_no_date_is_refused_when_the_run_is_triggered(tmp_path: Path, value: Any) -> None:
    dag = load_folder(_write(tmp_path, _job("a"))).dags["a"]
    assert dag.params.get_param("date").resolve("2026-01-31") == "2026-01-31"
    with pytest.raises(ParamValidationError):
        dag.params.get_param("date").resolve(value)


def test_an_override_without_a_value_is_refused_when_the_run_is_triggered(tmp_path: Path) -> None:
    dag = load_folder(_write(tmp_path, _job("a"))).dags["a"]
    assert dag.params.get_param("set").resolve(["limits.max_length=9"]) == ["limits.max_length=9"]
    with pytest.raises(ParamValidationError):
        dag.params.get_param("set").resolve(["limits.max_length"])


def test_every_parameter_has_a_type_a_title_and_a_help_text() -> None:
    (adhoc,) = _bag("staticjob_adhoc.py").dags.values()
    for name in adhoc.params:
        param = adhoc.params.get_param(name)
        assert param.schema.get("type"), name
        assert param.schema.get("title"), name
        assert param.description, name


def test_the_ad_hoc_form_left_as_it_is_makes_the_job_a_minimal_file_makes() -> None:
    filled = {**{key: _default(param) for key, param in form().items()}, **REQUIRED}
    job = validate_job(job_from_form(filled), "form")
    assert job == JobConfig.model_validate(
        {
            "name": "mine",
            "model": {"path": "m"},
            "input": {"uri": "s3://b/in", "columns": {"text": "body"}},
            "output": {"uri": "s3://b/out"},
        }
    )


def _default(param: Param) -> Any:
    return param.value if param.has_value else None


@pytest.mark.parametrize(
    ("key", "typed", "expected"),
    [
        ("batching.token_budget", "2048", 2048),
        ("batching.ladder", "[64, 128]", (64, 128)),
        ("input.keep", "[id, title]", ("id", "title")),
        ("input.keep", "all", "all"),
        ("limits.max_length", "auto", "auto"),
        ("embed.normalize", "false", False),
        ("cost.gpu_hour", "2.5", 2.5),
        ("cost.gpu_hour", 2.5, 2.5),
        ("model.revision", "1234567", "1234567"),
    ],
)
def test_a_typed_field_of_the_form_means_what_it_means_in_a_job_file(
    key: str, typed: Any, expected: Any
) -> None:
    assert form()[key].resolve(typed) == typed
    job = validate_job(job_from_form({**REQUIRED, key: typed}), "form")
    section, _, name = key.partition(".")
    assert getattr(getattr(job, section), name) == expected


@pytest.mark.parametrize("typed", ["[64, 128", "2026-02-30"])
def test_a_field_of_the_form_that_is_no_yaml_is_refused_by_its_name(typed: str) -> None:
    with pytest.raises(ConfigError, match=f"batching.ladder '{re.escape(typed)}': expected a list"):
        validate_job(job_from_form({**REQUIRED, "batching.ladder": typed}), "form")


def test_the_ad_hoc_form_takes_a_job_that_generates() -> None:
    (adhoc,) = _bag("staticjob_adhoc.py").dags.values()
    typed = {
        "task": "generate",
        "input.columns": {"prompt": "question"},
        "generate.max_new_tokens": 64,
        "generate.temperature": 0.7,
        "generate.stop": r'["\n\n"]',
        "generate.handover.least_gain": 0.2,
    }
    for key, value in typed.items():
        assert adhoc.params.get_param(key).resolve(value) == value
    filled = {key: _default(param) for key, param in form().items()}
    job = validate_job(job_from_form({**filled, **REQUIRED, **typed}), "form")
    assert job.generate == GenerateConfig(
        max_new_tokens=64, temperature=0.7, stop=("\n\n",), handover=HandoverConfig(least_gain=0.2)
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ""),
        ("task", "dance"),
        ("limits.max_error_rate", 2),
        ("model.dtype", "int3"),
        ("generate.max_new_tokens", 0),
    ],
)
def test_the_form_itself_refuses_what_a_job_file_would(key: str, value: Any) -> None:
    with pytest.raises(ParamValidationError):
        form()[key].resolve(value)


def test_a_job_names_whom_airflow_calls_and_the_connection_of_its_store(tmp_path: Path) -> None:
    airflow = {
        "aws_conn_id": "nightly",
        "on_success": "json.dumps",
        "on_failure": "json.loads",
        "deadline_hours": 4,
        "on_deadline": "json.dump",
    }
    dag = load_folder(_write(tmp_path, _job("a", airflow=airflow))).dags["a"]
    assert (dag.on_success_callback, dag.on_failure_callback) == (json.dumps, json.loads)
    (deadline,) = dag.deadline
    assert deadline.interval == dt.timedelta(hours=4)
    assert deadline.callback.path == "json.dump"
    for step in STEPS:
        task = dag.get_task(step)
        options = task.partial_kwargs if task.is_mapped else vars(task)
        connection = options.get("aws_conn_id")
        assert connection == (None if step == "groups" else "nightly")
    again = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    assert again.has_on_failure_callback


@pytest.mark.parametrize(
    ("airflow", "message"),
    [
        ({"on_failure": "no.such_function"}, "airflow.on_failure 'no.such_function': no such function"),
        ({"deadline_hours": 4}, "give both deadline_hours and on_deadline"),
        ({"on_missing_input": "hope"}, "airflow.on_missing_input"),
    ],
)
def test_an_alert_that_could_not_be_given_is_an_error_of_its_file(
    tmp_path: Path, airflow: dict[str, Any], message: str
) -> None:
    (error,) = load_folder(_write(tmp_path, _job("a", airflow=airflow))).errors
    assert message in error
