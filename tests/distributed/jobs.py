"""Jobs that several workers share, and what the tests ask about a run of theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from airflow_runs import Run
from small_jobs import MINILM, read_output, texts, write_input

from staticjob import steps, storage
from staticjob.config.job import ModelConfig
from staticjob.layout import Output, Work
from staticjob.models import model_files
from staticjob.planning.history import History
from staticjob.records.rates import Rates, ShapeRate
from staticjob.sandbox.airflow import AirflowSandbox
from staticjob.sandbox.demo import trigger

BUCKET = "s3://distributed"
DATE = "2026-01-31"
ROWS = 240
# Two rows a batch, so that what disturbs a chunk finds it half done.
LENGTH, BATCH = 32, 2
# Of a run with another fingerprint: no row's answer stays what it was.
OVERRIDE = "embed.normalize=false"
MODEL = f"{BUCKET}/model"


def job(name: str, *, source: str = "in", chunks: int = 1, **airflow: Any) -> dict[str, Any]:
    """A job over `<bucket>/<source>/{date}`, as its file says it. airflow: keys of that section."""
    return {
        "name": name,
        "model": {"path": MINILM},
        "input": {"uri": f"{BUCKET}/{source}/{{date}}", "columns": {"text": "text"}, "keep": ["id"]},
        "output": {"uri": f"{BUCKET}/{name}/{{date}}", "history_uri": f"{BUCKET}/history/{name}.json"},
        "limits": {"max_length": LENGTH},
        "batching": {
            "token_budget": LENGTH * BATCH,
            "ladder": [LENGTH],
            "chunk_slots": ROWS * LENGTH // chunks,
        },
        "airflow": airflow,
    }


UNDISTURBED = {**job("undisturbed"), "airflow": None}  # no DAG
JOBS = [
    job("killed", chunks=2),
    *(job(name) for name in ("rescheduled", "unstored", "unserved", "full")),
    job("twice", max_active_runs=2),
    job("contested", max_active_runs=2, aws_conn_id="proxied"),
    {**job("fetching"), "model": {"path": MODEL}},
    *(job(name, aws_conn_id="proxied") for name in ("slow", "expired", "cut_off")),
    job("nightly", source="days", schedule="0 0 * * *", on_missing_input="skip", max_active_runs=8),
]


def write_jobs(folder: Path) -> None:
    """Write the job files, what they read, and histories by which every chunk is worth a task of its own."""
    write_input(f"{BUCKET}/in/{DATE}", texts(ROWS), files=2)
    model = ModelConfig(path=MINILM)
    directory = model_files.resolve(model)
    pinned = model_files.pin(directory, model)
    for file in pinned.files:
        path = Path(file.uri)
        storage.put(f"{MODEL}/{path.relative_to(directory)}", path.read_bytes())
    slow = ShapeRate(length=LENGTH, batch=BATCH, seconds=1.0)
    rates = Rates(
        device="cpu", dtype="float32", shapes=(slow,), start_seconds=1.0, rung_seconds=0.0, source="a test"
    )
    history = History(model_digest=pinned.digest, rates=rates, device_memory=None)
    for each in (UNDISTURBED, *JOBS):
        (folder / f"{each['name']}.yaml").write_text(yaml.safe_dump(each))
        storage.put_json(each["output"]["history_uri"], history)


def undisturbed(jobs: Path, *overrides: str) -> dict[str, bytes]:
    """What one process alone makes of the input: the output files by name. overrides: as with --set."""
    command = [sys.executable, "-m", "staticjob", "run", jobs / "undisturbed.yaml", "--date", DATE]
    subprocess.run([*command, *(word for value in overrides for word in ("--set", value))], check=True)
    return published(Output(f"{BUCKET}/undisturbed/{DATE}"))


def start(airflow: AirflowSandbox, dag_id: str, **conf: Any) -> Run:
    """Trigger a run of a job for DATE."""
    run_id = trigger(airflow.api(), dag_id, {"date": DATE, **conf})
    return Run(airflow.api(), dag_id, run_id, Output(f"{BUCKET}/{dag_id}/{DATE}"))


def start_beside(run: Run, *overrides: str) -> Run:
    """Trigger another run of the same job and date while this one goes on; `start` would end it."""
    conf = {"date": DATE, "set": overrides}
    body = {"dag_run_id": f"{run.run_id}-beside", "logical_date": None, "conf": conf}
    run.api.post(f"/dags/{run.dag_id}/dagRuns", body)
    return Run(run.api, run.dag_id, str(body["dag_run_id"]), run.output)


def published(output: Output) -> dict[str, bytes]:
    """The output files by name."""
    found = storage.list_objects(output.uri + "/")
    return {o.uri.rpartition("/")[2]: storage.read(o.uri) for o in found if o.uri.endswith(".parquet")}


def check_same(run: Run, expected: dict[str, bytes]) -> None:
    """The run's output is complete, has every row once, and is bit for bit the undisturbed one."""
    assert storage.head(run.output.success) is not None
    assert [row["id"] for row in read_output(run.output)] == list(range(ROWS))
    assert published(run.output) == expected


@dataclass(frozen=True)
class ChunkProcess:
    """A command that runs a pack of chunks, as the kernel shows it."""

    pid: int
    pack: int
    env: dict[str, str]

    def exists(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()


def chunk_processes(airflow: AirflowSandbox, run: Run) -> list[ChunkProcess]:
    """The commands that run packs of this run now."""
    return list(_chunk_processes(airflow, run.xcom("prepare", "work")))


def _chunk_processes(airflow: AirflowSandbox, work: str) -> Iterator[ChunkProcess]:
    for pid in airflow.running():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        except OSError:  # ended meanwhile
            continue
        if words[2:6] == ["staticjob", "chunk", work, "--pack"]:
            yield ChunkProcess(pid, int(words[6]), dict(text.split("=", 1) for text in variables if text))


def flushed(run: Run, pack: int = 0) -> bool:
    """Whether a pack has stored some of its rows, and not yet all."""
    work = Work(run.xcom("prepare", "work"))
    (chunk,) = steps.load_plan(work).packs[pack]
    names = [obj.uri for obj in storage.list_objects(work.chunk(chunk))]
    assert not any(name.endswith("commit.json") for name in names), "too late to disturb it"
    return any("/flush-" in name for name in names)
