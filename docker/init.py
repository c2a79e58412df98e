"""Run once before Airflow's services, as root: password, database, pool and buckets."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import boto3

AIRFLOW_USER = 50000
PASSWORDS = Path("/var/airflow/passwords/passwords.json")
JOBS = Path("/opt/project/jobs")
GPUS = 1


def main() -> None:
    """May be run again at any time."""
    PASSWORDS.touch(mode=0o600)
    PASSWORDS.write_text(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}), encoding="utf-8")
    for path in (PASSWORDS.parent, PASSWORDS):
        os.chown(path, AIRFLOW_USER, 0)
    airflow("db", "migrate")
    make_pool()
    store = boto3.client("s3")
    present = {bucket["Name"] for bucket in store.list_buckets()["Buckets"]}
    for name in buckets(JOBS):
        if name not in present:
            store.create_bucket(Bucket=name)


def make_pool() -> None:
    """The pool, unless it is there: a person may have given it more slots."""
    if not airflow("pools", "get", "gpu", check=False):
        airflow("pools", "set", "gpu", str(GPUS), "one slot per GPU")


def airflow(*words: str, check: bool = True) -> bool:
    """Run a command of Airflow's as the user of its services, who must be able to write its logs.

    Returns whether it succeeded; with `check`, one that failed raises CalledProcessError.
    """
    return subprocess.run(["airflow", *words], check=check, user=AIRFLOW_USER, group=0).returncode == 0


def buckets(jobs: Path) -> list[str]:
    """The buckets that the job files name."""
    texts = [path.read_text(encoding="utf-8") for path in [*jobs.glob("*.yaml"), *jobs.glob("*.yml")]]
    return sorted({name for text in texts for name in re.findall(r"s3://([a-z0-9.-]+)", text)})


if __name__ == "__main__":
    main()
