"""One store and one Airflow for all tests of this folder, and the runs they look at."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import boto3
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_jobs
import yaml
from airflow_runs import Run, connection
from browser import CHROMIUM, DRIVER, MISSING, Browser
from small_jobs import texts, write_input
from statsd_server import Received, statsd_server

from end_to_end.jobs import ALERTS, ANSWERS, BUCKET, DATE, JOBS, ROWS, answers, job, start
from staticjob import storage
from staticjob.sandbox.airflow import REPOSITORY, USER, AirflowSandbox
from staticjob.sandbox.questions import write_questions
from staticjob.sandbox.stack import terminated_as_interrupt
from staticjob.sandbox.store import SeaweedStore


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first of these tests waits for Airflow to start, too."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="package")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Airflow's plugins folder as an operator has it: the project's plugins, and a module with alerts."""
    folder = tmp_path_factory.mktemp("plugins")
    for name in ("staticjob_plugin.py", "staticjob_airflow"):
        (folder / name).symlink_to(REPOSITORY / "plugins" / name)
    (folder / "my_alerts.py").write_text(ALERTS)
    return folder


@pytest.fixture(scope="package")
def statsd() -> Iterator[Received]:
    """What Airflow sends as metrics."""
    with statsd_server() as received:
        yield received


@pytest.fixture(scope="package")
def airflow(
    s3_server: SeaweedStore, plugins: Path, statsd: Received, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowSandbox]:
    """Airflow over the test store, with the jobs of these tests, one of them broken."""
    jobs = tmp_path_factory.mktemp("jobs")
    model = tiny_jobs.save("llama_wide", tmp_path_factory.mktemp("model") / "llama")
    for made in (*JOBS, answers(model), job("broken", limit={})):
        (jobs / f"{made['name']}.yaml").write_text(yaml.safe_dump(made))
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


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
def runs(airflow: AirflowSandbox) -> dict[str, Run]:
    """A run of every job, all triggered at once; the one to be killed comes first."""
    api = airflow.api()
    names = ["killed", *(made["name"] for made in JOBS if made["name"] != "killed"), ANSWERS]
    return {name: start(api, name, {"date": DATE}) for name in names}
