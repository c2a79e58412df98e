"""Jobs under a real scheduler: order, resume after SIGKILL, nothing to map, bad input, assets, metrics.

One Airflow and one store serve the whole file; its runs are triggered at the start, so that they
run while the tests wait for each other.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import airflow_home  # noqa: F401  (first: Airflow reads its settings at import)
import boto3
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_jobs
import yaml
from airflow_runs import LONGEST_WAIT, Run, connection, until
from browser import CHROMIUM, DRIVER, MISSING, Browser
from small_jobs import MINILM, texts, write_input
from staticjob_airflow.adhoc import job_from_form
from statsd_server import Received, Sent, statsd_server

from staticjob import storage
from staticjob.config.job import LimitsConfig
from staticjob.config.job_file import read_job_file, validate_job
from staticjob.config.options import GenerateConfig
from staticjob.layout import Output, Work
from staticjob.records.output import Manifest
from staticjob.records.status import Status
from staticjob.report import Report
from staticjob.sandbox.airflow import REPOSITORY, USER, AirflowSandbox
from staticjob.sandbox.demo import trigger
from staticjob.sandbox.questions import write_questions
from staticjob.sandbox.rest import AirflowApi
from staticjob.sandbox.stack import terminated_as_interrupt
from staticjob.sandbox.store import SeaweedStore
from staticjob.status import read_status

ROWS = 240
DATE = "2026-01-31"
BUCKET = "s3://end-to-end"
ANSWERS = "gsm8k_answers"
pytestmark = pytest.mark.timeout(600)  # the first test waits for Airflow to start, too


def _job(name: str, source: str = "in", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "model": {"path": MINILM},
        "input": {"uri": f"{BUCKET}/{source}/{{date}}", "columns": {"text": "text"}, "keep": ["id"]},
        "output": {"uri": f"{BUCKET}/{name}/{{date}}"},
        "limits": {"max_length": 32},
        # Two rows a batch: a hundred batches, so that a kill finds the chunk half done.
        "batching": {"token_budget": 64, "ladder": [32], "chunk_slots": 10**9},
        "airflow": {"retries": 1},
        **changes,
    }


# Whom the jobs call: each call leaves a line. Airflow runs one in the DAG processor, one in its executor.
ALERTS = """
import json, os

def _note(kind, dag_id, run_id):
    with open(os.environ["TEST_ALERTS"], "a") as file:
        file.write(json.dumps([kind, dag_id, run_id]) + "\\n")

def succeeded(context):
    _note("success", context["dag_run"].dag_id, context["dag_run"].run_id)

def failed(context):
    _note("failure", context["dag_run"].dag_id, context["dag_run"].run_id)

def late(context):
    _note("deadline", context["dag_run"]["dag_id"], context["dag_run"]["dag_run_id"])
"""
CALLS = {"on_success": "my_alerts.succeeded", "on_failure": "my_alerts.failed"}
LATE = {"deadline_hours": 1 / 3600, "on_deadline": "my_alerts.late"}  # after a second

JOBS = (
    _job("undisturbed", cost={"gpu_hour": 2.5}, airflow={"retries": 1, **CALLS, **LATE}),
    _job("killed"),
    _job("empty", source="nothing"),
    _job(
        "mistaken",
        input={"uri": f"{BUCKET}/in/{DATE}", "columns": {"text": "txt"}},
        airflow={"retries": 1, **CALLS},
    ),
    _job("skipped", source="never", airflow={"on_missing_input": "skip"}),
    _job("awaited", source="late", airflow={"on_missing_input": "wait", "aws_conn_id": "store"}),
)


def _answers(model: Path) -> dict[str, Any]:
    """`jobs/gsm8k_answers.yaml` with another model, in this file's bucket and shorter."""
    job = read_job_file(REPOSITORY / "jobs" / f"{ANSWERS}.yaml")
    job["model"] = {"path": str(model)}
    job["input"]["uri"] = f"{BUCKET}/questions/{{date}}"
    job["output"]["uri"] = f"{BUCKET}/{ANSWERS}/{{date}}"
    job["limits"]["max_length"] = 64
    job["generate"]["max_new_tokens"] = 24
    job["airflow"]["schedule"] = None
    return job


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Airflow's plugins folder as an operator has it: the project's plugins, and a module with alerts."""
    folder = tmp_path_factory.mktemp("plugins")
    for name in ("staticjob_plugin.py", "staticjob_airflow"):
        (folder / name).symlink_to(REPOSITORY / "plugins" / name)
    (folder / "my_alerts.py").write_text(ALERTS)
    return folder


@pytest.fixture(scope="module")
def statsd() -> Iterator[Received]:
    """What Airflow sends as metrics."""
    with statsd_server() as received:
        yield received


@pytest.fixture(scope="module")
def airflow(
    s3_server: SeaweedStore, plugins: Path, statsd: Received, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowSandbox]:
    """Airflow over the test store, with the jobs of this file, one of them broken."""
    jobs = tmp_path_factory.mktemp("jobs")
    model = tiny_jobs.save("llama_wide", tmp_path_factory.mktemp("model") / "llama")
    for job in (*JOBS, _answers(model), _job("broken", limit={})):
        (jobs / f"{job['name']}.yaml").write_text(yaml.safe_dump(job))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.env().items():
            patch.setenv(name, value)
        boto3.Session().client("s3").create_bucket(Bucket=BUCKET.removeprefix("s3://"))
        write_input(f"{BUCKET}/in/{DATE}", texts(ROWS), files=4)
        write_questions(f"{BUCKET}/questions/{DATE}", tiny_jobs.prompts(40, seed=3))
        sink = BytesIO()
        pq.write_table(pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())}), sink)
        storage.put(f"{BUCKET}/nothing/{DATE}/nothing.parquet", sink.getvalue())
        environment = {
            **s3_server.env(),
            "AIRFLOW_CONN_STORE": connection(s3_server.env()),
            "STATICJOB_FLUSH_SECONDS": "0",
            "STATICJOB_CACHE": str(tmp_path_factory.mktemp("cache")),
            "TEST_ALERTS": str(plugins / "calls"),
        }
        settings = {
            "CORE__PLUGINS_FOLDER": plugins,
            "METRICS__STATSD_ON": True,
            "METRICS__STATSD_HOST": "127.0.0.1",
            "METRICS__STATSD_PORT": statsd.port,
            "METRICS__STATSD_INFLUXDB_ENABLED": True,
        }
        home = tmp_path_factory.mktemp("airflow")
        with (
            terminated_as_interrupt(),
            AirflowSandbox(home, jobs=jobs, env=environment, settings=settings) as sandbox,
        ):
            yield sandbox
        assert sandbox.running() == []


@pytest.fixture(scope="module")
def browser(airflow: AirflowSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium, logged in to Airflow."""
    if not CHROMIUM or not DRIVER:
        pytest.skip(MISSING)
    login = httpx.post(f"{airflow.url}/auth/token", json={"username": USER, "password": airflow.password})
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        browser.open(f"{airflow.url}/auth/login")
        browser.cookie("_token", login.json()["access_token"])
        browser.console()
        yield browser


@pytest.fixture(scope="module")
def runs(airflow: AirflowSandbox) -> dict[str, Run]:
    """A run of every job, all triggered at once; the one to be killed comes first."""
    api = airflow.api()
    names = ["killed", *(job["name"] for job in JOBS if job["name"] != "killed"), ANSWERS]
    return {name: _start(api, name, {"date": DATE}) for name in names}


def _start(api: AirflowApi, dag_id: str, conf: dict[str, Any]) -> Run:
    return Run(api, dag_id, trigger(api, dag_id, conf), Output(f"{BUCKET}/{dag_id}/{DATE}"))


def _chunk_process(airflow: AirflowSandbox, work: str) -> int | None:
    """Process id of the command that runs a pack of this work prefix."""
    for pid in airflow.running():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if words[2:5] == ["staticjob", "chunk", work]:
            return pid
    return None


def test_a_chunk_killed_midway_goes_on_where_it_stopped_and_the_merged_bytes_are_the_same(
    airflow: AirflowSandbox, runs: dict[str, Run], statsd: Received
) -> None:
    run = runs["killed"]
    run.until(lambda: run.states().get("prepare") == "success", "prepare")
    work = Work(run.xcom("prepare", "work"))

    def flushed() -> bool:
        return any("/flush-" in obj.uri for obj in storage.list_objects(work.chunks))

    deadline = time.monotonic() + LONGEST_WAIT
    while not flushed():
        assert time.monotonic() < deadline, "no chunk flushed anything"
        time.sleep(0.05)
    pid = _chunk_process(airflow, work.uri)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert not any(obj.uri.endswith("commit.json") for obj in storage.list_objects(work.chunks)), (
        "killed too late"
    )

    run.succeeds()
    (chunk,) = run.tasks("chunk")
    assert chunk["try_number"] == 2
    assert "ended by SIGKILL; finished work is kept" in run.log("chunk", 1)
    assert "batches kept from an earlier try" in run.log("chunk", 2)
    (commit,) = read_status(run.output.uri).commits
    assert 0 < commit.kept_batches < commit.batches
    retry = Sent("airflow.staticjob.retries", {"dag_id": "killed", "step": "chunk"}, 1, "c")
    assert statsd.of("killed").count(retry) == 1

    runs["undisturbed"].succeeds()
    (other,) = read_status(runs["undisturbed"].output.uri).commits
    assert other.kept_batches == 0
    assert _files(run) == _files(runs["undisturbed"])


def _files(run: Run) -> dict[str, bytes]:
    """The published files by name."""
    found = storage.list_objects(run.output.uri + "/")
    return {o.uri.rpartition("/")[2]: storage.read(o.uri) for o in found if o.uri.endswith(".parquet")}


def test_a_run_that_waits_for_its_input_holds_no_worker(runs: dict[str, Run]) -> None:
    run = runs["awaited"]
    run.until(lambda: run.states().get("prepare") == "deferred", "prepare")
    write_input(f"{BUCKET}/late/{DATE}", texts(6), files=1)


def test_the_output_has_every_input_row_once_in_the_inputs_order(runs: dict[str, Run]) -> None:
    run = runs["undisturbed"]
    run.succeeds()
    tables = [pq.read_table(BytesIO(data)) for _, data in sorted(_files(run).items())]
    assert [id_ for table in tables for id_ in table["id"].to_pylist()] == list(range(ROWS))
    assert all(table["embedding"].null_count == 0 for table in tables)
    assert storage.head(run.output.success) is not None


def test_mapped_tasks_are_named_by_rung_and_chunk_and_xcoms_hold_addresses_and_counts(
    runs: dict[str, Run],
) -> None:
    run = runs["undisturbed"]
    run.succeeds()
    (pack,) = run.xcom("plan")
    assert set(pack) == {"name", "index"}
    assert [task["rendered_map_index"] for task in run.tasks("chunk")] == [pack["name"]]
    assert pack["name"].startswith("L32")
    assert [task["rendered_map_index"] for task in run.tasks("tokenize")] == run.xcom("prepare")
    assert [task["rendered_map_index"] for task in run.tasks("merge")] == run.xcom("groups")
    assert run.xcom("chunk", map_index=0)["rows"] == ROWS


def test_the_output_asset_carries_the_runs_counts(airflow: AirflowSandbox, runs: dict[str, Run]) -> None:
    run = runs["undisturbed"]
    run.succeeds()
    events = airflow.api().get("/assets/events", source_dag_id=run.dag_id)["asset_events"]
    assert [event["uri"] for event in events] == [f"{BUCKET}/undisturbed"]
    assert events[0]["extra"]["rows"] == ROWS
    assert events[0]["extra"]["output"] == run.output.uri


def test_a_job_that_writes_texts_reports_its_active_rows_and_decisions(runs: dict[str, Run]) -> None:
    run = runs[ANSWERS]
    run.succeeds()
    manifest = storage.read_json(run.output.manifest, Manifest)
    assert (manifest.task, manifest.rows, manifest.statuses) == ("generate", 40, {Status.OK: 40})
    report = storage.read_json(run.output.report_json, Report)
    assert report.texts
    assert report.texts.curve.rows == 40
    assert sum(report.texts.finish.values()) == 40
    assert report.texts.chunks[0].decisions
    page = storage.read(run.output.report_html).decode()
    assert '<svg class="curve"' in page
    assert "<h2>Decisions</h2>" in page


def test_what_a_run_computed_arrives_once_where_airflows_statsd_settings_point(
    runs: dict[str, Run], statsd: Received
) -> None:
    run = runs["undisturbed"]
    run.succeeds()
    manifest = storage.read_json(run.output.manifest, Manifest)
    assert manifest.cost is not None
    assert manifest.statuses
    gauges = {
        "run.useful_share": manifest.ledger.useful_share,
        "run.active_share": 1.0,  # all rows of a batch end together
        "run.seconds": manifest.seconds,
        "run.cost": manifest.cost,
    }
    counters = {"slots": manifest.ledger.slots, "useful_tokens": manifest.ledger.useful}
    tags = {"dag_id": run.dag_id}
    expected = [
        *(("rows", "c", count, {**tags, "status": status}) for status, count in manifest.statuses.items()),
        *((name, "c", count, tags) for name, count in counters.items()),
        *((name, "g", pytest.approx(value), tags) for name, value in gauges.items()),
    ]

    def sent() -> list[Sent]:
        return [each for each in statsd.of(run.dag_id) if each.name != "airflow.staticjob.retries"]

    until(lambda: len(sent()) >= len(expected), "the metrics")
    assert [
        (each.name.removeprefix("airflow.staticjob."), each.kind, each.value, each.tags) for each in sent()
    ] == expected


def test_a_run_with_nothing_to_map_succeeds_with_a_manifest_of_no_rows(runs: dict[str, Run]) -> None:
    run = runs["empty"]
    run.succeeds()
    assert run.states()["chunk"] == "skipped"
    assert run.states()["finish"] == "success"
    assert storage.read_json(run.output.manifest, Manifest).rows == 0
    assert storage.head(run.output.success) is not None


def test_a_run_without_its_input_is_skipped_where_the_job_says_so(runs: dict[str, Run]) -> None:
    run = runs["skipped"]
    run.succeeds()
    states = run.states()
    assert states.pop("prepare") == "success"
    assert len(states) == 6
    assert set(states.values()) == {"skipped"}
    assert storage.head(run.output.success) is None


def test_a_run_goes_on_when_its_input_has_come(runs: dict[str, Run]) -> None:
    run = runs["awaited"]
    run.succeeds()
    assert storage.read_json(run.output.manifest, Manifest).rows == 6
    assert "waiting for it until" in run.log("prepare")


def test_a_mistake_in_the_job_fails_at_the_first_try_with_one_clear_line(runs: dict[str, Run]) -> None:
    run = runs["mistaken"]
    assert run.ends() == "failed"
    (failed,) = [task for task in run.tasks() if task["state"] == "failed"]
    assert failed["try_number"] == 1
    assert failed["max_tries"] == 1  # a retry was left, and not taken
    assert "'txt'" in run.log(failed["task_id"])


def test_a_run_with_an_unknown_key_is_refused(airflow: AirflowSandbox, runs: dict[str, Run]) -> None:
    assert runs["mistaken"].ends() == "failed"
    run = _start(airflow.api(), "mistaken", {"dat": DATE})
    assert run.ends() == "failed"
    assert run.tasks("prepare")[0]["try_number"] == 1
    assert "run conf: unknown key 'dat'; did you mean 'date'?" in run.log("prepare")


def test_whom_a_job_names_is_called_once_when_a_run_succeeds_fails_and_passes_its_deadline(
    runs: dict[str, Run], plugins: Path
) -> None:
    good, bad = runs["undisturbed"], runs["mistaken"]
    good.succeeds()
    assert bad.ends() == "failed"
    expected = [
        ["deadline", good.dag_id, good.run_id],
        ["failure", bad.dag_id, bad.run_id],
        ["success", good.dag_id, good.run_id],
    ]

    def calls() -> list[list[str]]:
        """Those of the runs that were triggered first; others follow."""
        lines = (plugins / "calls").read_text().splitlines() if (plugins / "calls").exists() else []
        return sorted(call for call in map(json.loads, lines) if call[2] in (good.run_id, bad.run_id))

    until(lambda: len(calls()) >= len(expected), "the calls")
    assert calls() == expected


def test_a_broken_job_file_is_named_by_airflow_and_hides_no_dag(
    airflow: AirflowSandbox, runs: dict[str, Run]
) -> None:
    (error,) = airflow.api().get("/importErrors")["import_errors"]
    assert "broken.yaml: unknown key 'limit'; did you mean 'limits'?" in error["stack_trace"]
    assert {dag["dag_id"] for dag in airflow.api().get("/dags")["dags"]} == {*runs, "staticjob_adhoc"}


def test_clearing_one_chunk_of_a_finished_run_changes_no_object(
    airflow: AirflowSandbox, runs: dict[str, Run]
) -> None:
    run = runs["undisturbed"]
    run.succeeds()
    before = {o.uri: o.version for o in storage.list_objects(run.output.uri + "/") if "/chunks/" not in o.uri}
    body = {"dag_run_id": run.run_id, "task_ids": ["chunk"], "dry_run": False, "only_failed": False}
    airflow.api().post(f"/dags/{run.dag_id}/clearTaskInstances", {**body, "reset_dag_runs": True})
    until(lambda: run.tasks("chunk")[0]["try_number"] == 2 and run.state() == "success", "the cleared chunk")
    assert run.xcom("chunk", map_index=0)["chunks"] == {"done": 1, "reused": 1, "total": 1}
    after = {o.uri: o.version for o in storage.list_objects(run.output.uri + "/") if "/chunks/" not in o.uri}
    assert after == before


def test_a_running_chunk_that_is_marked_failed_stops_and_says_so(
    airflow: AirflowSandbox, runs: dict[str, Run]
) -> None:
    runs["killed"].succeeds()
    api = airflow.api()
    conf = {"date": DATE, "set": ["embed.normalize=false"]}  # another fingerprint: all is computed again
    run = _start(api, "killed", conf)
    run.until(lambda: run.states().get("prepare") == "success", "prepare")
    work = run.xcom("prepare", "work")
    run.until(lambda: _chunk_process(airflow, work) is not None, "the chunk's process")
    pid = _chunk_process(airflow, work)
    api.patch(f"{run.path}/taskInstances/chunk/0", {"new_state": "failed"})
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the chunk's process")
    assert run.ends() == "failed"
    until(lambda: "stopped before its end; finished work is kept" in run.log("chunk"), "the chunk's log")


def test_a_whole_job_given_through_the_form_runs_and_emits_its_own_asset(
    airflow: AirflowSandbox, runs: dict[str, Run]
) -> None:
    runs["empty"].succeeds()
    form = {
        "name": "by-form",
        "model.path": MINILM,
        "input.uri": f"{BUCKET}/in/{{date}}/p0.parquet",
        "input.columns": {"text": "text"},
        "output.uri": f"{BUCKET}/by-form/{{date}}",
        "limits.max_length": "32",
        "date": DATE,
    }
    run = _start(airflow.api(), "staticjob_adhoc", form)
    run.succeeds()
    result = run.xcom("finish")
    assert (result["output"], result["rows"]) == (f"{BUCKET}/by-form/{DATE}", ROWS // 4)
    events = airflow.api().get("/assets/events", source_dag_id="staticjob_adhoc")["asset_events"]
    assert [event["extra"]["rows"] for event in events] == [ROWS // 4]


ON_SCREEN = "return (document.querySelector(arguments[0])?.getClientRects().length ?? 0) > 0"
HOLDS = "return document.querySelector(arguments[0]).value.replace(',', '') === arguments[1]"
DRAWN = "return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
BACKSPACE = "\ue003"


def test_a_number_of_the_form_that_is_left_empty_is_the_jobs_own_and_one_that_is_typed_counts(
    airflow: AirflowSandbox, browser: Browser
) -> None:
    def fill(section: str, **typed: str) -> None:
        browser.click(f"button[id$=':trigger:{section}']")
        for key, text in typed.items():
            field = f"[name='element_{key.replace('__', '.')}']"
            browser.until(ON_SCREEN, field)
            type_into(field, text, text)

    def type_into(field: str, keys: str, value: str) -> None:
        browser.type(field, keys)
        browser.until(HOLDS, field, value)
        # The form takes over a value as it draws; one that is typed before that would be lost.
        browser.until(DRAWN)

    browser.open(f"{airflow.url}/dags/staticjob_adhoc")
    browser.until(ON_SCREEN, "[data-testid='trigger-dag-button']")
    browser.click("[data-testid='trigger-dag-button']")
    browser.until(ON_SCREEN, "button[id$=':trigger:Job']")
    fill("Job", name="by-hand")
    fill("Model", model__path=MINILM)
    fill("Input", input__uri=f"{BUCKET}/in/{DATE}")
    fill("Output", output__uri=f"{BUCKET}/by-hand")
    fill("Generate", generate__max_new_tokens="2048", generate__temperature="0.75")
    type_into("[name='element_generate.n']", "3", "3")
    type_into("[name='element_generate.n']", BACKSPACE, "")
    browser.click("[data-testid='trigger-dag-submit']")
    browser.until("return location.pathname.includes('/runs/')")
    run_id = unquote(browser.script("return location.pathname").partition("/runs/")[2])
    conf = airflow.api().get(f"/dags/staticjob_adhoc/dagRuns/{run_id}")["conf"]
    # The one section that nothing was typed into is an editor's: JSON.
    made = job_from_form({**conf, "task": "generate", "input.columns": {"prompt": "text"}})
    job = validate_job(made, "the form")
    assert job.generate is not None
    assert job.generate.model_dump() == GenerateConfig(max_new_tokens=2048, temperature=0.75).model_dump()
    assert job.limits == LimitsConfig()


def _page(airflow: AirflowSandbox, run: Run, page: str = "run") -> str:
    return f"{airflow.url}/staticjob/{page}?{urlencode({'dag_id': run.dag_id, 'run_id': run.run_id})}"


TILES = r"return [...document.querySelectorAll('#tiles div')].map(tile => tile.innerText.replace('\n', ' '))"
CELLS = """
const rows = document.querySelectorAll(arguments[0] + ' tbody tr');
return [...rows].map(row => [...row.cells].map(cell => cell.innerText));
"""


def test_the_page_of_a_finished_run_shows_its_numbers_in_light_and_dark_and_the_console_is_silent(
    airflow: AirflowSandbox, runs: dict[str, Run], browser: Browser
) -> None:
    run = runs["undisturbed"]
    run.succeeds()
    manifest = storage.read_json(run.output.manifest, Manifest)
    seen = {}
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        browser.open(_page(airflow, run))
        browser.until("return document.querySelectorAll('#trends figure').length === 4")
        tiles = browser.script(TILES)
        assert tiles[:2] == ["100.0% of the slots done", f"{ROWS} of {ROWS} rows computed"]
        assert f"{manifest.ledger.useful_share:.1%} useful so far" in tiles[5]
        assert tiles[6].startswith("$")
        (rung,) = browser.script(CELLS, "#rungs")
        assert (rung[0], rung[2], rung[4]) == ("2 × 32", "100.0%", "1")
        assert [row[2] for row in browser.script(CELLS, "#chunks")] == ["done"]
        assert [["ok", str(manifest.statuses[Status.OK])]] == browser.script(CELLS, "#statuses")[:1]
        seen[scheme] = browser.screenshot()
    assert browser.console() == []
    light, dark = (browser.colours_of(seen[scheme]) for scheme in ("light", "dark"))
    assert min(len(light), len(dark)) > 20  # text and pictures, no empty page
    assert 0xF7F8FA in light - dark
    assert 0x0F141A in dark - light


def test_the_tab_of_a_run_leads_out_of_its_frame_to_the_log_of_a_chunk_and_to_the_report(
    airflow: AirflowSandbox, runs: dict[str, Run], browser: Browser
) -> None:
    run = runs["undisturbed"]
    run.succeeds()
    inside = f"{airflow.url}/dags/{run.dag_id}/runs/{quote(run.run_id)}"
    browser.open(f"{inside}/plugin/static-batch")
    browser.until("return document.querySelector('iframe') !== null")
    browser.into_frame("iframe")
    browser.until("return document.querySelector('#chunks td a') !== null")
    browser.click("#report")
    with browser.new_window():
        browser.until("return document.querySelector('h1')?.innerText === 'undisturbed done'")
    browser.into_frame("iframe")
    browser.click("#chunks td a")
    browser.out_of_frame()
    until(
        lambda: browser.script("return location.pathname").endswith("/tasks/chunk/mapped/0"), "the log's page"
    )
    browser.until("return document.body.innerText.includes('staticjob chunk')")
    known = "An iframe which has both allow-scripts and allow-same-origin"  # Airflow's own frame
    assert [line for line in browser.console() if known not in line] == []


def test_a_page_that_is_open_follows_a_run_to_its_end(
    airflow: AirflowSandbox, runs: dict[str, Run], browser: Browser
) -> None:
    runs["undisturbed"].succeeds()
    run = _start(airflow.api(), "undisturbed", {"date": DATE})
    browser.open(_page(airflow, run))
    browser.until("return ['queued', 'running'].includes(document.querySelector('#state').innerText)")
    run.succeeds()
    browser.until("return document.querySelector('#state').innerText === 'success'")
    assert browser.script(TILES)[0] == "100.0% of the slots done"
    lead = browser.script("return document.querySelector('#lead').innerText")
    assert "1 of them kept from an earlier run" in lead
    assert run.api.get(run.path)["note"].startswith(f"staticjob: {ROWS} rows (")


def test_the_page_is_closed_to_whoever_is_not_logged_in(
    airflow: AirflowSandbox, runs: dict[str, Run], browser: Browser
) -> None:
    browser.open(f"{airflow.url}/auth/login")
    browser.forget_cookies()
    for page in ("run", "api/run", "report"):
        browser.open(_page(airflow, runs["undisturbed"], page))
        assert browser.script("return document.body.innerText") == '{"detail":"Not authenticated"}'
