"""The whole sandbox under one folder: S3 store and Airflow, brought up and down together."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from staticjob.sandbox.airflow import AirflowSandbox
from staticjob.sandbox.processes import MARKER, end_marked, marked
from staticjob.sandbox.store import SeaweedStore, remove_sockets

BUCKETS = ("corpus", "embeddings", "models", "prompts", "answers")
STOP_SECONDS = 4.0
STARTING = (
    "starting the S3 store and Airflow (scheduler, API server, DAG processor, triggerer): about a minute"
)


class Sandbox:
    """A store with the demo's buckets, and an Airflow that has its credentials.

    run_dir: everything lies beneath it. jobs: folder of the job files. port: of Airflow's UI, 0: any.
    """

    def __init__(self, run_dir: Path, *, jobs: Path, port: int = 0) -> None:
        self.run_dir = run_dir.resolve()
        self._store_dir = self.run_dir / "store"
        self._store: SeaweedStore | None = None
        self.airflow = AirflowSandbox(
            self.run_dir / "airflow",
            jobs=jobs,
            env={"STATICJOB_CACHE": str(self.run_dir / "cache")},
            port=port,
        )

    def up(self) -> AirflowSandbox:
        """Start both; this process gets the store's credentials in its environment.

        Raises ConfigError when something runs here already, InfrastructureError when a part does
        not come up; nothing is left running then.
        """
        airflow = self.airflow
        airflow.refuse_running()
        os.environ[MARKER] = str(self._store_dir)
        try:
            self._store = store = SeaweedStore(self._store_dir, outlive_parent=True)
            store.start()
            os.environ.update(store.env())
            self._write_env(store.env())
            make_buckets()
            airflow.env.update(store.env())
            airflow.start()
        except BaseException:  # an interrupt too: nothing is left running
            self.down()
            raise
        return airflow

    def down(self) -> int:
        """End every process that was started beneath `run_dir`, in this process or another; how many."""
        airflow = str(self.run_dir / "airflow")
        running = [*marked(airflow), *marked(str(self._store_dir))]
        self.airflow.stop()
        if self._store:
            self._store.stop()
        end_marked(str(self._store_dir), STOP_SECONDS)
        with suppress(FileNotFoundError):
            remove_sockets(json.loads((self._store_dir / "ports.json").read_text()))
        return len(running)

    def _write_env(self, env: dict[str, str]) -> None:
        """`env.sh`: what a shell needs to point the command line at the store."""
        path = self.run_dir / "env.sh"
        path.touch(mode=0o600)
        path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items()))


def make_buckets() -> None:
    """Make the demo's buckets where they are missing."""
    import boto3

    client = boto3.Session().client("s3")
    present = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
    for name in BUCKETS:
        if name not in present:
            client.create_bucket(Bucket=name)


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C within the block, so that what was started is stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
