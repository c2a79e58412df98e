"""S3 by an Airflow connection: by environment only, renewed for as long as a step runs."""

from __future__ import annotations

import datetime as dt
import json
import logging
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import airflow_home  # noqa: F401  (first: Airflow reads its settings at import)
import boto3
import pytest
from airflow.sdk.exceptions import AirflowNotFoundException
from botocore.credentials import RefreshableCredentials
from staticjob_airflow.chunk import ChunkOperator
from staticjob_airflow.credentials import OTHER_CREDENTIALS, handed_over, step_environment

STUB = str(Path(__file__).with_name("stub_staticjob.py"))


@pytest.fixture
def connection(s3: Any, s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A connection `nightly` to the test store; the worker's own environment knows other keys."""
    access: dict[str, str] = s3_server.env()
    parts = {
        "conn_type": "aws",
        "login": access["AWS_ACCESS_KEY_ID"],
        "password": access["AWS_SECRET_ACCESS_KEY"],
        "extra": {"endpoint_url": access["AWS_ENDPOINT_URL"], "region_name": "us-east-1"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_NIGHTLY", json.dumps(parts))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another's")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    return access


def use(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name in OTHER_CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def keys_of(count: int, lifetime: dt.timedelta) -> dict[str, str]:
    end = dt.datetime.now(dt.UTC) + lifetime
    names = {name: f"{name}-{count}" for name in ("access_key", "secret_key", "token")}
    return {**names, "expiry_time": end.isoformat()}


def test_a_step_gets_keys_and_endpoint_of_the_connection_by_environment_and_nowhere_else(
    connection: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STATICJOB_PYTHON", STUB)
    monkeypatch.setenv("STUB", json.dumps({"stdout": "{}", "lines": ["working"]}))
    monkeypatch.setenv("STUB_SEEN", str(tmp_path / "seen.json"))
    chunk = ChunkOperator(task_id="chunk", work="w", pack={"index": 0}, aws_conn_id="nightly")
    with caplog.at_level(logging.DEBUG):
        chunk.execute({})
    seen = json.loads((tmp_path / "seen.json").read_text())
    given = {name: value for name, value in seen["env"].items() if name.startswith("AWS_")}
    assert given == connection
    secret = connection["AWS_SECRET_ACCESS_KEY"]
    assert secret not in json.dumps(seen["argv"])
    log = caplog.text + "".join(capsys.readouterr())
    assert "working" in log
    assert secret not in log


def test_what_a_step_gets_opens_the_store(
    connection: dict[str, str], s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put("a", b"here")
    with step_environment("nightly") as environment:
        use(monkeypatch, environment)
        assert boto3.Session().client("s3").get_object(Bucket=s3.name, Key="a")["Body"].read() == b"here"
    s3.client.delete_object(Bucket=s3.name, Key="a")


def test_without_a_connection_a_step_has_the_workers_own_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    with step_environment(None) as environment:
        assert environment["AWS_ACCESS_KEY_ID"] == "own"


def test_a_connection_that_does_not_exist_is_never_replaced_by_the_workers_own_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    with pytest.raises(AirflowNotFoundException, match="nowhere"), step_environment("nowhere"):
        pass


def test_keys_that_expire_are_renewed_while_the_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step asks boto3 alone; each look-up gets what the task's credentials are by then."""
    rounds = iter(range(1, 100))

    def renew() -> dict[str, str]:
        return keys_of(next(rounds), dt.timedelta(minutes=5))  # botocore renews such at every look

    credentials = RefreshableCredentials.create_from_metadata(renew(), renew, "test")
    with handed_over(credentials) as environment:
        assert not any("-1" in value for value in environment.values()), "only an address is handed over"
        use(monkeypatch, environment)
        found = boto3.session.Session().get_credentials()
        assert isinstance(found, RefreshableCredentials), "boto3 knows that they expire"
        first = found.get_frozen_credentials()
        assert not found.refresh_needed(refresh_in=14 * 60)
        assert found.refresh_needed(refresh_in=21 * 60), "and asks again before their end"
        second = boto3.session.Session().get_credentials().get_frozen_credentials()
        assert first.token != second.token
        assert first.access_key.startswith("access_key-")


def test_only_the_step_gets_an_answer() -> None:
    credentials = RefreshableCredentials.create_from_metadata(
        keys_of(1, dt.timedelta(hours=1)), lambda: keys_of(2, dt.timedelta(hours=1)), "test"
    )
    with handed_over(credentials) as environment:
        address = environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address)
    with pytest.raises(urllib.error.URLError):  # and nobody does after the step
        urllib.request.urlopen(address)
