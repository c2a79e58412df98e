"""The local S3 server: side by side, keeps its data, leaves no process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import boto3
import pytest

from staticjob.errors import ConfigError
from staticjob.sandbox.store import HOST, SeaweedStore


def client(store: SeaweedStore) -> Any:
    access = store.env()
    return boto3.Session().client(
        "s3",
        endpoint_url=access["AWS_ENDPOINT_URL"],
        aws_access_key_id=access["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=access["AWS_SECRET_ACCESS_KEY"],
        region_name=access["AWS_DEFAULT_REGION"],
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_store_runs_beside_another_and_keeps_objects_and_keys_over_a_restart_on_other_ports(
    s3_server: SeaweedStore, tmp_path: Path
) -> None:
    store = SeaweedStore(tmp_path).start()
    try:
        assert store.endpoint != s3_server.endpoint
        client(store).create_bucket(Bucket="kept")
        client(store).put_object(Bucket="kept", Key="a", Body=b"x")
        pid, first = store.pid, store.env()
    finally:
        store.stop()
    assert not alive(pid)
    assert not list(Path("/tmp").glob(f"seaweedfs-*-{first['AWS_ENDPOINT_URL'].rsplit(':', 1)[1]}.sock"))
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind((HOST, json.loads((tmp_path / "ports.json").read_text())["master"]))
        squatter.listen()
        with SeaweedStore(tmp_path) as again:
            assert again.env()["AWS_SECRET_ACCESS_KEY"] == first["AWS_SECRET_ACCESS_KEY"]
            assert client(again).get_object(Bucket="kept", Key="a")["Body"].read() == b"x"


def test_the_keys_are_readable_by_their_owner_only(s3_server: SeaweedStore) -> None:
    assert (s3_server.data_dir / "access.json").stat().st_mode & 0o077 == 0


def test_a_taken_port_is_named(s3_server: SeaweedStore, tmp_path: Path) -> None:
    port = int(s3_server.endpoint.rsplit(":", 1)[1])
    with pytest.raises(ConfigError, match=f"{port} is taken"):
        SeaweedStore(tmp_path, port=port).start()


def test_a_store_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from staticjob.sandbox.store import SeaweedStore; "
        "print(SeaweedStore(sys.argv[1]).start().pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        if not alive(pid):
            break
        time.sleep(0.05)
    assert not alive(pid)
