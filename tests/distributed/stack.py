"""Airflow with Celery workers, set up as docker/compose.yaml sets it up, on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from distributed.servers import broker, postgres
from staticjob.sandbox.airflow import REPOSITORY, AirflowSandbox, Component

GPUS = 2
# Taken from the compose file as they are; of addresses, what stands before the host.
SHARED = (
    "CORE__EXECUTOR",
    "OPERATORS__DEFAULT_QUEUE",
    "CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT",
)
ADDRESSES = ("DATABASE__SQL_ALCHEMY_CONN", "CELERY__RESULT_BACKEND", "CELERY__BROKER_URL")
# A worker that is gone is noticed after 30 s instead of five minutes.
QUICK = {
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 30,
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 2,
}


@contextmanager
def celery_airflow(
    home: Path, *, jobs: Path, env: Mapping[str, str], caches: Path
) -> Iterator[AirflowSandbox]:
    """Everything running: workers `cpu`, `gpu0` and `gpu1`.

    As on a machine of its own, each gpu worker has one device to see, and a model cache in `caches`.
    """
    compose = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())
    written = {key: compose["x-airflow-environment"][f"AIRFLOW__{key}"] for key in SHARED + ADDRESSES}
    with postgres(home / "postgres") as database, broker(home / "broker") as queues:
        places = dict(zip(ADDRESSES, (database, database, queues), strict=True))
        here = {key: f"{written[key].partition('://')[0]}://{place}" for key, place in places.items()}
        settings = {**written, **here, **QUICK}
        workers = {"cpu": _worker(compose, "worker-cpu", "cpu")}
        for gpu in range(GPUS):
            name = f"gpu{gpu}"
            own = {"CUDA_VISIBLE_DEVICES": str(gpu), "STATICJOB_CACHE": str(caches / name)}
            workers[name] = _worker(compose, "worker-gpu", name, own)
        with AirflowSandbox(
            home / "airflow",
            jobs=jobs,
            env=env,
            parallelism=8,
            gpus=GPUS,
            settings=settings,
            workers=workers,
        ) as airflow:
            yield airflow
        assert airflow.running() == []


def _worker(
    compose: dict[str, Any], service: str, name: str, env: Mapping[str, str] | None = None
) -> Component:
    """A worker of the compose file, under a name of its own; its logs lie where the API server reads."""
    program, *words = compose["services"][service]["command"]
    assert program == "airflow"
    return Component((*words, "--celery-hostname", f"{name}@%h", "--skip-serve-logs"), env or {})
