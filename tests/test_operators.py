"""Operators against a stand-in command: what they start, log, return, stop and raise."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow_home  # noqa: F401  (first: Airflow reads its settings at import)
import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from staticjob_airflow.base import StaticJobOperator
from staticjob_airflow.chunk import ChunkOperator
from staticjob_airflow.command import Command
from staticjob_airflow.dates import date_of_run
from staticjob_airflow.finish import FinishOperator
from staticjob_airflow.merge import MergeOperator
from staticjob_airflow.plan import PlanOperator
from staticjob_airflow.prepare import PrepareOperator
from staticjob_airflow.tokenize import TokenizeOperator

STUB = str(Path(__file__).with_name("stub_staticjob.py"))
UTC = dt.UTC
FINISHED = {
    "rows": 3,
    "statuses": {"ok": 2, "empty": 1},
    "ledger": {"useful": 60, "padding": 10, "dummy": 20, "finished": 10, "slots": 100},
    "useful_share": 0.6,
    "seconds": 5.0,
    "cost": None,
    "reused": False,
}


class Stub:
    """The stand-in command of one test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen = folder / "seen.json"
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("STATICJOB_PYTHON", STUB)
        monkeypatch.setenv("STUB_SEEN", str(self._seen))
        self.does()

    def does(self, result: Any = None, **plan: Any) -> None:
        if result is not None:
            plan["stdout"] = json.dumps(result)
        self._monkeypatch.setenv("STUB", json.dumps(plan))

    def seen(self) -> dict[str, Any]:
        _until(lambda: self._seen.exists() and self._seen.read_text().endswith("}"))
        return dict(json.loads(self._seen.read_text()))


class Pushed:
    """A task instance that keeps what is pushed."""

    def __init__(self) -> None:
        self.xcoms: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    return Stub(tmp_path, monkeypatch)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 s in vain"
        time.sleep(0.02)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _context(conf: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    params = {"date": None, "set": [], **(conf or {})}
    run = SimpleNamespace(conf=conf, run_after=dt.datetime(2026, 2, 1, 3, tzinfo=UTC))
    dag = SimpleNamespace(params={"date": None, "set": []})
    return {"params": params, "dag_run": run, "dag": dag, "ti": Pushed(), **more}


def _chunk(**options: Any) -> ChunkOperator:
    return ChunkOperator(task_id="chunk", work="s3://b/w", pack={"name": "L512", "index": 3}, **options)


def test_a_step_runs_the_command_line_in_its_own_process_group_and_dies_with_its_parent(stub: Stub) -> None:
    stub.does({"rows": 7})
    assert _chunk().execute({}) == {"rows": 7}
    seen = stub.seen()
    assert seen["argv"] == ["-m", "staticjob", "chunk", "s3://b/w", "--pack", "3", "--json"]
    assert seen["env"]["STATICJOB_DIE_WITH_PARENT"] == "1"
    assert seen["env"]["STATICJOB_PARENT_PID"] == str(os.getpid())
    assert seen["group"] != seen["parent_group"]


def test_the_commands_lines_appear_in_the_task_log(stub: Stub) -> None:
    stub.does({}, lines=["chunk c1: 5 batches kept", "", "done"])
    lines: list[str] = []
    Command([STUB], os.environ, 1.0).run(lines.append)
    assert lines == ["chunk c1: 5 batches kept", "done"]


def test_the_interpreter_can_be_given_to_a_task(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATICJOB_PYTHON", "/does/not/exist")
    stub.does({"rows": 1})
    assert _chunk(python=STUB).execute({}) == {"rows": 1}


def test_an_interpreter_that_is_missing_fails_at_once_and_says_how_to_set_it() -> None:
    with pytest.raises(AirflowFailException, match=r"/does/not/exist: cannot be started.*STATICJOB_PYTHON"):
        _chunk(python="/does/not/exist").execute({})


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (1, AirflowException, "exit code 1: store is down"),
        (2, AirflowFailException, "store is down"),
        (3, AirflowException, "stopped before its end"),
    ],
)
def test_exit_codes_decide_whether_airflow_retries(
    stub: Stub, code: int, kind: type[Exception], message: str
) -> None:
    stub.does({"error": "store is down", "exit_code": code}, code=code, lines=["error: store is down"])
    with pytest.raises(kind, match=message) as caught:
        _chunk().execute({})
    assert isinstance(caught.value, AirflowFailException) == (code == 2)


def test_a_command_that_dies_early_is_explained_by_the_last_line_it_wrote(stub: Stub) -> None:
    stub.does(code=1, stdout="", lines=["Traceback", "No module named staticjob"])
    with pytest.raises(AirflowException, match="exit code 1: No module named staticjob"):
        _chunk().execute({})


@pytest.mark.parametrize("stdout", ["", "[1]", "{} {}", "hello"])
def test_anything_but_one_json_object_on_stdout_fails_without_retry(stub: Stub, stdout: str) -> None:
    stub.does(stdout=stdout)
    with pytest.raises(AirflowFailException, match="stdout is not one JSON object"):
        _chunk().execute({})


def test_a_step_killed_by_a_signal_is_retried(stub: Stub) -> None:
    stub.does(wait=True)
    threading.Thread(target=lambda: os.kill(_pid(stub), signal.SIGKILL)).start()
    with pytest.raises(AirflowException, match="ended by SIGKILL") as caught:
        _chunk().execute({})
    assert not isinstance(caught.value, AirflowFailException)


@pytest.mark.parametrize("deaf", [False, True])
def test_on_kill_ends_the_whole_group_and_execute_then_fails_loudly(stub: Stub, deaf: bool) -> None:
    stub.does(wait=True, child=True, deaf=deaf)
    operator = _chunk(stop_grace=0.3)
    threading.Thread(target=lambda: (stub.seen(), operator.on_kill())).start()
    with pytest.raises(AirflowException, match="stopped before its end"):
        operator.execute({})
    # Killed is not yet gone: the kernel still has to take them off the list.
    _until(lambda: _gone(_pid(stub)))
    _until(lambda: _gone(stub.seen()["child"]))


def test_a_command_that_ends_well_although_it_was_stopped_still_fails_the_task(stub: Stub) -> None:
    stub.does({"rows": 1})
    command = Command([STUB], os.environ, 1.0)
    command.stop()
    assert command.run(lambda line: None).stopped


def test_nothing_the_command_left_behind_outlives_it(stub: Stub) -> None:
    stub.does({"rows": 1}, child=True)
    _chunk().execute({})
    _until(lambda: _gone(stub.seen()["child"]))


def test_a_task_ends_with_its_supervisor(stub: Stub, tmp_path: Path) -> None:
    stub.does(wait=True)
    supervisor = os.fork()
    if supervisor == 0:
        task = os.fork()
        if task == 0:
            _chunk().execute({})
        (tmp_path / "task").write_text(str(task))
        time.sleep(300)
        os._exit(0)
    command = _pid(stub)
    os.kill(supervisor, signal.SIGKILL)
    os.waitpid(supervisor, 0)
    _until(lambda: _gone(int((tmp_path / "task").read_text())))
    os.kill(command, signal.SIGKILL)  # the stub does not tie itself to its parent, as the real command does


def test_prepare_returns_the_splits_and_pushes_addresses_only(stub: Stub) -> None:
    stub.does({"work": "s3://o/w", "output": "s3://o", "fingerprint": "f", "splits": ["s0", "s1"]})
    context = _context({"date": "2026-01-31", "set": ["limits.max_length=9"]})
    assert PrepareOperator(task_id="prepare", job="/jobs/a.yaml").execute(context) == ["s0", "s1"]
    assert context["ti"].xcoms == {"work": "s3://o/w", "output": "s3://o"}
    assert stub.seen()["argv"][2:] == [
        "prepare", "/jobs/a.yaml", "--date", "2026-01-31", "--set", "limits.max_length=9", "--json"
    ]  # fmt: skip


def test_prepare_pushes_why_it_failed_for_the_run_page(stub: Stub) -> None:
    stub.does({"error": "input.uri s3://b/in: no data there", "exit_code": 2}, code=2)
    context = _context()
    with pytest.raises(AirflowFailException):
        PrepareOperator(task_id="prepare", job="/jobs/a.yaml").execute(context)
    assert context["ti"].xcoms == {"failure": "staticjob prepare: input.uri s3://b/in: no data there"}


def test_an_unknown_key_of_the_runs_conf_is_refused_with_the_nearest_one(stub: Stub) -> None:
    context = _context({"dat": "2026-01-31"})
    with pytest.raises(AirflowFailException, match="unknown key 'dat'; did you mean 'date'"):
        PrepareOperator(task_id="prepare", job="/jobs/a.yaml").execute(context)


def test_plan_returns_packs_by_name_and_index_without_their_chunks(stub: Stub) -> None:
    stub.does(
        {"packs": [{"index": 0, "name": "L512 c001", "chunks": ["x"] * 900}], "groups": ["g0"], "ledger": {}}
    )
    context = _context()
    packs = PlanOperator(task_id="plan", work="s3://o/w").execute(context)
    assert packs == [{"name": "L512 c001", "index": 0}]
    assert context["ti"].xcoms == {"groups": ["g0"]}
    assert stub.seen()["argv"][2:] == ["plan", "s3://o/w", "--json"]


def test_tokenize_and_merge_name_their_part_of_the_work(stub: Stub) -> None:
    TokenizeOperator(task_id="tokenize", work="s3://o/w", split="s7").execute({})
    assert stub.seen()["argv"][2:] == ["tokenize", "s3://o/w", "--split", "s7", "--json"]
    MergeOperator(task_id="merge", work="s3://o/w", group="g7").execute({})
    assert stub.seen()["argv"][2:] == ["merge", "s3://o/w", "--group", "g7", "--json"]


def test_finish_emits_the_output_asset_with_counts(stub: Stub) -> None:
    result = FINISHED | {"output": "s3://o/2026-01-31"}
    stub.does(result)
    asset, alias, added = Asset("s3://o"), AssetAlias("job"), []
    event = SimpleNamespace(add=lambda asset, extra: added.append((asset, extra)))
    finish = FinishOperator(task_id="finish", work="s3://o/w", asset=asset, outlets=[alias])
    assert finish.execute({"outlet_events": {alias: event}}) == result
    assert added == [(asset, result)]


def test_finish_of_an_ad_hoc_job_emits_an_asset_at_the_place_it_wrote_to(stub: Stub) -> None:
    stub.does(FINISHED | {"output": "s3://o/x"})
    alias = AssetAlias("staticjob_adhoc")
    added: list[tuple[Asset, dict[str, Any]]] = []
    event = SimpleNamespace(add=lambda asset, extra: added.append((asset, extra)))
    FinishOperator(task_id="finish", work="w", outlets=[alias]).execute({"outlet_events": {alias: event}})
    assert [(asset.uri, extra["rows"]) for asset, extra in added] == [("s3://o/x", 3)]


@pytest.mark.parametrize(
    ("given", "start", "expected", "reason"),
    [
        ("2026-01-31", dt.datetime(2026, 3, 1, tzinfo=UTC), "2026-01-31", "given with the run"),
        (None, dt.datetime(2026, 1, 30, 17, tzinfo=UTC), "2026-01-31", "start of the data interval"),
        (None, None, "2026-02-02", "no data interval"),
    ],
)
def test_the_date_is_given_or_the_intervals_start_or_the_day_of_the_trigger_in_the_schedules_zone(
    given: str | None, start: dt.datetime | None, expected: str, reason: str
) -> None:
    run_after = dt.datetime(2026, 2, 1, 16, tzinfo=UTC)  # 01:00 of the next day in Tokyo
    found = date_of_run(given, start, run_after, "Asia/Tokyo")
    assert found.date.isoformat() == expected
    assert reason in found.reason


def test_a_date_that_is_none_is_refused() -> None:
    with pytest.raises(AirflowFailException, match="expected YYYY-MM-DD"):
        date_of_run("31.1.2026", None, dt.datetime(2026, 2, 1, tzinfo=UTC), "UTC")


def test_every_operator_templates_the_interpreter() -> None:
    for operator in (
        PrepareOperator,
        TokenizeOperator,
        PlanOperator,
        ChunkOperator,
        MergeOperator,
        FinishOperator,
    ):
        assert issubclass(operator, StaticJobOperator)
        assert "python" in operator.template_fields


def _pid(stub: Stub) -> int:
    return int(stub.seen()["group"])  # the leader of its own group
