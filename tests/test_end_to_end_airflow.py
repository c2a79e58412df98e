"""Jobs under a real scheduler: order, resume after SIGKILL, nothing to map, bad input, assets.

One Airflow and one store serve the whole file; its runs are triggered at the start, so that they
run while the tests wait for each other.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from small_jobs import MINILM, texts, write_input

from staticjob import storage
from staticjob.layout import Output, Work
from staticjob.records import Manifest
from staticjob.sandbox.airflow import AirflowSandbox
from staticjob.sandbox.demo import failures, trigger
from staticjob.sandbox.rest import AirflowApi
from staticjob.sandbox.stack import terminated_as_interrupt
from staticjob.sandbox.store import SeaweedStore
from staticjob.status import read_status

ROWS = 240
DATE = "2026-01-31"
BUCKET = "s3://end-to-end"
LONGEST_WAIT = 540.0
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


JOBS = (
    _job("undisturbed"),
    _job("killed"),
    _job("empty", source="nothing"),
    _job("mistaken", input={"uri": f"{BUCKET}/in/{DATE}", "columns": {"text": "txt"}}),
)


@dataclass(frozen=True)
class Run:
    """One triggered run of a DAG."""

    api: AirflowApi
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}"

    @property
    def output(self) -> Output:
        return Output(f"{BUCKET}/{self.dag_id}/{DATE}")

    def state(self) -> str:
        return str(self.api.get(self.path)["state"])

    def ends(self) -> str:
        """Wait for the final state."""
        _until(lambda: self.state() in ("success", "failed"), self.dag_id)
        return self.state()

    def succeeds(self) -> None:
        """Wait for success; shows the log of what failed instead."""
        if self.ends() != "success":
            pytest.fail(failures(self.api, self.dag_id, self.run_id))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something to happen before the run ends badly."""
        _until(lambda: condition() or self.state() == "failed", what)
        if not condition():
            pytest.fail(failures(self.api, self.dag_id, self.run_id))

    def tasks(self, task_id: str | None = None) -> list[dict[str, Any]]:
        found = self.api.get(f"{self.path}/taskInstances", limit=1000)["task_instances"]
        return [task for task in found if task_id in (None, task["task_id"])]

    def states(self) -> dict[str, str]:
        return {task["task_id"]: task["state"] for task in self.tasks()}

    def log(self, task_id: str, try_number: int | None = None) -> str:
        return "\n".join(self.api.log(self.dag_id, self.run_id, self.tasks(task_id)[0], try_number))

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        path = f"{self.path}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.api.get(path, map_index=map_index)["value"]


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONGEST_WAIT
    while not condition():
        assert time.monotonic() < deadline, f"{what}: waited {LONGEST_WAIT:.0f} s in vain"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def airflow(s3_server: SeaweedStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowSandbox]:
    """Airflow over the test store, with the jobs of this file, one of them broken."""
    jobs = tmp_path_factory.mktemp("jobs")
    for job in (*JOBS, _job("broken", limit={})):
        (jobs / f"{job['name']}.yaml").write_text(yaml.safe_dump(job))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.env().items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket=BUCKET.removeprefix("s3://"))
        write_input(f"{BUCKET}/in/{DATE}", texts(ROWS), files=4)
        sink = BytesIO()
        pq.write_table(pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())}), sink)
        storage.put(f"{BUCKET}/nothing/{DATE}/nothing.parquet", sink.getvalue())
        environment = {
            **s3_server.env(),
            "STATICJOB_FLUSH_SECONDS": "0",
            "STATICJOB_CACHE": str(tmp_path_factory.mktemp("cache")),
        }
        home = tmp_path_factory.mktemp("airflow")
        with terminated_as_interrupt(), AirflowSandbox(home, jobs=jobs, env=environment) as sandbox:
            yield sandbox
        assert sandbox.running() == []


@pytest.fixture(scope="module")
def runs(airflow: AirflowSandbox) -> dict[str, Run]:
    """A run of every job, all triggered at once; the one to be killed comes first."""
    api = airflow.api()
    names = ["killed", *(job["name"] for job in JOBS if job["name"] != "killed")]
    return {name: Run(api, name, trigger(api, name, {"date": DATE})) for name in names}


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
    airflow: AirflowSandbox, runs: dict[str, Run]
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

    runs["undisturbed"].succeeds()
    (other,) = read_status(runs["undisturbed"].output.uri).commits
    assert other.kept_batches == 0
    assert _files(run) == _files(runs["undisturbed"])


def _files(run: Run) -> dict[str, bytes]:
    """The published files by name."""
    found = storage.list_objects(run.output.uri + "/")
    return {o.uri.rpartition("/")[2]: storage.read(o.uri) for o in found if o.uri.endswith(".parquet")}


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


def test_a_run_with_nothing_to_map_succeeds_with_a_manifest_of_no_rows(runs: dict[str, Run]) -> None:
    run = runs["empty"]
    run.succeeds()
    assert run.states()["chunk"] == "skipped"
    assert run.states()["finish"] == "success"
    assert storage.read_json(run.output.manifest, Manifest).rows == 0
    assert storage.head(run.output.success) is not None


def test_a_mistake_in_the_job_fails_at_the_first_try_with_one_clear_line(runs: dict[str, Run]) -> None:
    run = runs["mistaken"]
    assert run.ends() == "failed"
    (failed,) = [task for task in run.tasks() if task["state"] == "failed"]
    assert failed["try_number"] == 1
    assert failed["max_tries"] == 1  # a retry was left, and not taken
    assert "'txt'" in run.log(failed["task_id"])


def test_a_run_with_an_unknown_key_is_refused(airflow: AirflowSandbox, runs: dict[str, Run]) -> None:
    assert runs["mistaken"].ends() == "failed"
    run = Run(airflow.api(), "mistaken", trigger(airflow.api(), "mistaken", {"dat": DATE}))
    assert run.ends() == "failed"
    assert run.tasks("prepare")[0]["try_number"] == 1
    assert "run conf: unknown key 'dat'; did you mean 'date'?" in run.log("prepare")


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
    _until(lambda: run.tasks("chunk")[0]["try_number"] == 2 and run.state() == "success", "the cleared chunk")
    assert run.xcom("chunk", map_index=0)["chunks"] == {"done": 1, "reused": 1, "total": 1}
    after = {o.uri: o.version for o in storage.list_objects(run.output.uri + "/") if "/chunks/" not in o.uri}
    assert after == before


def test_a_running_chunk_that_is_marked_failed_stops_and_says_so(
    airflow: AirflowSandbox, runs: dict[str, Run]
) -> None:
    runs["killed"].succeeds()
    api = airflow.api()
    conf = {"date": DATE, "set": ["embed.normalize=false"]}  # another fingerprint: all is computed again
    run = Run(api, "killed", trigger(api, "killed", conf))
    run.until(lambda: run.states().get("prepare") == "success", "prepare")
    work = run.xcom("prepare", "work")
    run.until(lambda: _chunk_process(airflow, work) is not None, "the chunk's process")
    pid = _chunk_process(airflow, work)
    api.patch(f"{run.path}/taskInstances/chunk/0", {"new_state": "failed"})
    _until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the chunk's process")
    assert run.ends() == "failed"
    _until(lambda: "stopped before its end; finished work is kept" in run.log("chunk"), "the chunk's log")


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
    run = Run(airflow.api(), "staticjob_adhoc", trigger(airflow.api(), "staticjob_adhoc", form))
    run.succeeds()
    result = run.xcom("finish")
    assert (result["output"], result["rows"]) == (f"{BUCKET}/by-form/{DATE}", ROWS // 4)
    events = airflow.api().get("/assets/events", source_dag_id="staticjob_adhoc")["asset_events"]
    assert [event["extra"]["rows"] for event in events] == [ROWS // 4]
