"""docs/iam-policy.json, put to a real S3 server: enough for a whole job, and for nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from small_jobs import job, texts, write_input

from staticjob import storage
from staticjob.layout import Output
from staticjob.local_run import run_job
from staticjob.sandbox.store import SeaweedStore

POLICY = Path(__file__).parents[1] / "docs" / "iam-policy.json"
INPUT, OUTPUT = "s3://corpus/nightly", "s3://embeddings/nightly"


class StoreWithUsers(SeaweedStore):
    """A store whose IAM service makes users and takes policies, as AWS's does."""

    def _options(self) -> list[str]:
        return [*super()._options(), "-s3.iam.readOnly=false"]


def client(service: str, access: dict[str, str]) -> Any:
    return boto3.Session().client(
        service,
        endpoint_url=access["AWS_ENDPOINT_URL"],
        aws_access_key_id=access["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=access["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )


def allowed(request: Callable[[], Any]) -> bool:
    try:
        request()
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("AccessDenied", "403"):
            raise
        return False
    return True


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Access as administrator, and as a worker that has the policy and nothing else."""
    names = {"INPUT-BUCKET": "corpus", "OUTPUT-BUCKET": "embeddings"}
    names |= {"INPUT-PREFIX": "nightly", "OUTPUT-PREFIX": "nightly"}
    policy = POLICY.read_text()
    for placeholder, name in names.items():
        policy = policy.replace(placeholder, name)
    with StoreWithUsers(tmp_path_factory.mktemp("seaweed-iam")) as store:
        root = store.env()
        for bucket in ("corpus", "embeddings", "other"):
            client("s3", root).create_bucket(Bucket=bucket)
        iam = client("iam", root)
        iam.create_user(UserName="worker")
        key = iam.create_access_key(UserName="worker")["AccessKey"]
        iam.put_user_policy(UserName="worker", PolicyName="staticjob", PolicyDocument=policy)
        worker = root | {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }
        deadline = time.monotonic() + 20  # the gateway reads users and policies a moment later
        look = client("s3", worker)
        while not allowed(lambda: look.list_objects_v2(Bucket="corpus", Prefix="nightly/")):
            assert time.monotonic() < deadline, "the policy never came into force"
            time.sleep(0.1)
        yield root, worker


def use(monkeypatch: pytest.MonkeyPatch, access: dict[str, str]) -> None:
    for name, value in access.items():
        monkeypatch.setenv(name, value)


def test_a_worker_with_the_policy_runs_a_whole_job_and_runs_it_again(
    access: tuple[dict[str, str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, worker = access
    use(monkeypatch, root)
    write_input(f"{INPUT}/2026-01-31", texts(24))
    config = job(
        "unused",
        input={"uri": f"{INPUT}/2026-01-31/", "columns": {"text": "text"}},
        output={"uri": f"{OUTPUT}/2026-01-31/", "history_uri": f"{OUTPUT}/_history.json"},
    )
    use(monkeypatch, worker)
    assert run_job(config).manifest.rows == 24
    assert storage.head(Output(config.output.uri).success) is not None
    assert run_job(config).done == run_job(config).reused


def test_the_policy_allows_nothing_else(access: tuple[dict[str, str], dict[str, str]]) -> None:
    root, worker = access
    s3 = client("s3", root)
    places = [("corpus", "nightly/a"), ("corpus", "salaries/a"), ("embeddings", "nightly2/a"), ("other", "a")]
    for bucket, key in places:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    s3 = client("s3", worker)
    readable = [p for p in places if allowed(lambda p=p: s3.get_object(Bucket=p[0], Key=p[1]))]
    assert readable == [("corpus", "nightly/a")]
    for bucket, key in places:
        assert not allowed(lambda b=bucket, k=key: s3.put_object(Bucket=b, Key=k, Body=b"y")), (bucket, key)
        assert not allowed(lambda b=bucket, k=key: s3.delete_object(Bucket=b, Key=k)), (bucket, key)
    for bucket, prefix in [
        ("corpus", ""),
        ("corpus", "salaries/"),
        ("embeddings", "nightly2/"),
        ("other", ""),
    ]:
        listed = allowed(lambda b=bucket, p=prefix: s3.list_objects_v2(Bucket=b, Prefix=p))
        assert not listed, (bucket, prefix)
    assert not allowed(lambda: s3.create_bucket(Bucket="mine"))
