"""A run whose input is not there yet: fails, is skipped, or waits without a worker, as the job says."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow_home  # noqa: F401  (first: Airflow reads its settings at import)
import pytest
from airflow.sdk.bases.operator import TriggerFailureReason
from airflow.sdk.exceptions import AirflowFailException, DownstreamTasksSkipped, TaskDeferred
from small_jobs import job
from staticjob_airflow.dag import job_dag
from staticjob_airflow.missing import InputTrigger
from staticjob_airflow.prepare import PrepareOperator

from staticjob.cli import main
from staticjob.config.job_file import validate_job
from staticjob.errors import ConfigError

STUB = str(Path(__file__).with_name("stub_staticjob.py"))
URI = "s3://b/in/2026-01-31"
MISSING = {"error": f"input.uri {URI}: no data there", "exit_code": 2, "missing": URI}
PREPARED = {"work": "s3://b/w", "output": "s3://b/out", "splits": ["s0"]}
FAIL_METHOD = "__fail__"


@pytest.fixture
def finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Decides what `staticjob prepare` prints."""
    monkeypatch.setenv("STATICJOB_PYTHON", STUB)
    monkeypatch.setenv("STUB_SEEN", str(tmp_path / "seen.json"))

    def set_result(result: dict[str, Any]) -> None:
        plan = {"stdout": json.dumps(result), "code": result.get("exit_code", 0)}
        monkeypatch.setenv("STUB", json.dumps(plan))

    return set_result


def context() -> dict[str, Any]:
    run = SimpleNamespace(conf=None, run_after=dt.datetime(2026, 2, 1, 3, tzinfo=dt.UTC))
    ti = SimpleNamespace(xcom_push=lambda key, value: None)
    return {"params": {}, "dag_run": run, "dag": SimpleNamespace(params={}), "ti": ti}


def prepare(**options: Any) -> PrepareOperator:
    return PrepareOperator(task_id="prepare", job="/jobs/a.yaml", **options)


def deferral(operator: PrepareOperator) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        operator.execute(context())
    return caught.value


def test_the_command_line_says_where_the_data_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "job.yaml"
    (tmp_path / "in").mkdir()
    config.write_text(json.dumps(job(str(tmp_path)).model_dump(mode="json")))
    with pytest.raises(SystemExit):
        main(["prepare", str(config), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["exit_code"] == 2
    assert printed["missing"] == f"{tmp_path}/in"


def test_a_job_that_does_not_say_otherwise_fails_at_once(finds: Callable[..., None]) -> None:
    finds(MISSING)
    with pytest.raises(AirflowFailException, match="no data there"):
        prepare().execute(context())


def test_a_job_that_skips_skips_all_that_follows_whatever_its_trigger_rule(
    finds: Callable[..., None],
) -> None:
    finds(MISSING)
    data = job("s3://b").model_dump(mode="json") | {"airflow": {"on_missing_input": "skip"}}
    dag = job_dag("/jobs/a.yaml", validate_job(data, "a.yaml"), "")
    operator = dag.get_task("prepare")
    pushed: dict[str, str] = {}
    ti = SimpleNamespace(xcom_push=pushed.__setitem__)
    with pytest.raises(DownstreamTasksSkipped) as caught:
        operator.execute({**context(), "ti": ti})
    assert set(caught.value.tasks) == set(dag.task_ids) - {"prepare"}
    assert pushed == {"missing_input": URI}


def test_a_job_that_waits_leaves_its_worker_and_goes_on_when_the_data_has_come(
    finds: Callable[..., None],
) -> None:
    finds(MISSING)
    operator = prepare(on_missing_input="wait", wait_hours=2)
    first = deferral(operator)
    assert isinstance(first.trigger, InputTrigger)
    assert first.trigger.uri == URI
    assert first.timeout <= dt.timedelta(hours=2)
    # Something came, but only what writers leave beside data: the wait goes on, up to the same moment.
    with pytest.raises(TaskDeferred) as again:
        operator.resume_execution(first.method_name, {**first.kwargs, "event": {}}, context())
    assert again.value.kwargs == first.kwargs
    finds(PREPARED)
    assert operator.resume_execution(first.method_name, {**first.kwargs, "event": {}}, context()) == ["s0"]


def test_a_wait_ends_in_a_failure_that_is_not_retried(finds: Callable[..., None]) -> None:
    finds(MISSING)
    operator = prepare(on_missing_input="wait", wait_hours=2)
    for method, arguments in (
        (FAIL_METHOD, {"error": TriggerFailureReason.TRIGGER_TIMEOUT}),
        ("after_wait", {"event": {}, "until": "2026-01-01T00:00:00+00:00"}),
    ):
        with pytest.raises(AirflowFailException, match="still no data there after 2 hours"):
            operator.resume_execution(method, arguments, context())


def test_the_trigger_fires_for_data_beneath_the_prefix_and_for_nothing_else(s3: Any) -> None:
    s3.put("data2/a")
    s3.put("data/", b"")
    trigger = InputTrigger(f"{s3.uri}/data", None, 0.0)
    again = InputTrigger(**trigger.serialize()[1])
    assert trigger.serialize()[0] == "staticjob_airflow.missing.InputTrigger"

    async def first_event() -> Any:
        return await anext(aiter(again.run()))

    async def waits_then_fires() -> Any:
        event = asyncio.create_task(first_event())
        done, _ = await asyncio.wait([event], timeout=0.5)
        assert not done
        await asyncio.to_thread(s3.put, "data/a")
        return await event

    assert asyncio.run(waits_then_fires()).payload == {"found": f"{s3.uri}/data"}
    for key in ("data2/a", "data/", "data/a"):
        s3.client.delete_object(Bucket=s3.name, Key=key)


def test_a_local_input_cannot_be_waited_for() -> None:
    data = job("/somewhere").model_dump(mode="json") | {"airflow": {"on_missing_input": "wait"}}
    with pytest.raises(ConfigError, match="wait watches an s3:// input"):
        validate_job(data, "a.yaml")
