"""A run of a DAG on a real Airflow, as its REST API shows it, and the store as a connection of Airflow's."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from staticjob.layout import Output
from staticjob.sandbox.demo import failures
from staticjob.sandbox.rest import AirflowApi

LONGEST_WAIT = 540.0


@dataclass(frozen=True)
class Run:
    """One triggered run of a DAG, which writes to `output`."""

    api: AirflowApi
    dag_id: str
    run_id: str
    output: Output

    @property
    def path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def state(self) -> str:
        return str(self.api.get(self.path)["state"])

    def ends(self) -> str:
        """Wait for the final state."""
        until(lambda: self.state() in ("success", "failed"), self.dag_id)
        return self.state()

    def succeeds(self) -> None:
        """Wait for success; shows the log of what failed instead."""
        if self.ends() != "success":
            pytest.fail(failures(self.api, self.dag_id, self.run_id))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something to happen before the run ends badly."""
        until(lambda: condition() or self.state() == "failed", what)
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


def until(condition: Callable[[], bool], what: str, pause: float = 0.5) -> None:
    deadline = time.monotonic() + LONGEST_WAIT
    while not condition():
        assert time.monotonic() < deadline, f"{what}: waited {LONGEST_WAIT:.0f} s in vain"
        time.sleep(pause)


def connection(access: dict[str, str]) -> str:
    """The store as an Airflow connection."""
    extra = {"endpoint_url": access["AWS_ENDPOINT_URL"], "region_name": access["AWS_DEFAULT_REGION"]}
    keys = {"login": access["AWS_ACCESS_KEY_ID"], "password": access["AWS_SECRET_ACCESS_KEY"]}
    return json.dumps({"conn_type": "aws", **keys, "extra": extra})
