"""Order, resume after SIGKILL, nothing to map, bad input, alerts, assets, and jobs that are given by a form.

The first of the folder's files: one of the runs is to be killed while it is under way.
"""

from __future__ import annotations

import json
import os
import signal
import time
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
from airflow_runs import LONGEST_WAIT, Run, until
from small_jobs import MINILM, texts, write_input
from statsd_server import Received, Sent

from end_to_end.jobs import ANSWERS, BUCKET, DATE, ROWS, start
from staticjob import storage
from staticjob.layout import Work
from staticjob.records.output import Manifest
from staticjob.records.status import Status
from staticjob.report.data import Report
from staticjob.sandbox.airflow import AirflowSandbox
from staticjob.status import read_status


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
    run = start(airflow.api(), "mistaken", {"dat": DATE})
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
    run = start(api, "killed", conf)
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
    run = start(airflow.api(), "staticjob_adhoc", form)
    run.succeeds()
    result = run.xcom("finish")
    assert (result["output"], result["rows"]) == (f"{BUCKET}/by-form/{DATE}", ROWS // 4)
    events = airflow.api().get("/assets/events", source_dag_id="staticjob_adhoc")["asset_events"]
    assert [event["extra"]["rows"] for event in events] == [ROWS // 4]
