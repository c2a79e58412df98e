"""A real Airflow on the loopback: scheduler, API server, DAG processor and triggerer.

Over SQLite with the LocalExecutor, unless `settings` say otherwise.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from staticjob.errors import ConfigError, InfrastructureError
from staticjob.sandbox.processes import MARKER, end_marked, marked
from staticjob.sandbox.rest import AirflowApi

HOST = "127.0.0.1"
USER = "admin"
REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
STOP_SECONDS = 4.0
GPU_POOL = "gpu"
LAST_LINES = 20


@dataclass(frozen=True)
class Component:
    """One process of Airflow's that stays: the words after `airflow`, and variables for it alone."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


# `--skip-serve-logs`: the API server reads the logs from the same disk.
COMPONENTS = {
    "api-server": Component(("api-server", "--workers", "1")),
    "scheduler": Component(("scheduler", "--skip-serve-logs")),
    "dag-processor": Component(("dag-processor",)),
    "triggerer": Component(("triggerer", "--skip-serve-logs")),
}


class AirflowSandbox:
    """One Airflow over one home directory.

    home: database, logs, keys and the password (`access.json`, mode 0600); started again on it,
        the history is still there.
    jobs: folder of the job files. env: added to every process, e.g. the store's credentials.
    port: of the API server and UI; 0 takes the port of the last start if it is free, else any.
    parallelism: tasks at once. gpus: slots of the pool of the chunk tasks.
    settings: further AIRFLOW__ settings, SECTION__KEY to value; they win over the sandbox's own.
    workers: further components by name, e.g. Celery's.
    """

    def __init__(
        self,
        home: Path,
        *,
        jobs: Path,
        env: Mapping[str, str],
        port: int = 0,
        parallelism: int = 2,
        gpus: int = 1,
        settings: Mapping[str, object] | None = None,
        workers: Mapping[str, Component] | None = None,
    ) -> None:
        self.home = home.resolve()
        self.jobs = jobs
        self.env = dict(env)
        self.port = port
        self.parallelism = parallelism
        self.gpus = gpus
        self.settings = dict(settings or {})
        self.components = {**COMPONENTS, **(workers or {})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._access()['port']}"

    @property
    def password(self) -> str:
        return str(self._access()["password"])

    def api(self) -> AirflowApi:
        """A client of the REST API, logged in."""
        return AirflowApi(self.url, USER, self.password)

    def running(self) -> list[int]:
        """Process ids of everything that was started here and has not ended."""
        return marked(str(self.home))

    def refuse_running(self) -> None:
        """Raise ConfigError when an Airflow runs on this home already."""
        if self.running():
            raise ConfigError(f"Airflow in {self.home} is running; stop it first (make down)")

    def start(self) -> AirflowSandbox:
        """Start all components and wait until they are healthy and the pool of the GPU is made.

        Raises ConfigError when it is running already or the port is taken, InfrastructureError
        when a component does not come up.
        """
        self.refuse_running()
        self.home.mkdir(parents=True, exist_ok=True)
        self._make_access()
        try:
            self._migrate()
            for name in self.components:
                self.start_component(name)
            self._wait_until_healthy()
            self.api().set_pool(GPU_POOL, self.gpus)
        except BaseException:  # an interrupt too: nothing is left running
            self.stop()
            raise
        return self

    def start_component(self, name: str) -> None:
        """Start one component, as `start` does with all, or again after `kill_component`."""
        component = self.components[name]
        self._processes[name] = self._spawn(name, component.command, {**self._environment(), **component.env})

    def kill_component(self, name: str) -> int:
        """SIGKILL a component's own process, and nothing that it started; returns its process id."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        return process.pid

    def run(self, *words: str) -> None:
        """Run an `airflow` command to its end. Raises InfrastructureError, with what it said, if it fails."""
        name = words[0]
        if self._spawn(name, words, self._environment()).wait() != 0:
            raise InfrastructureError(f"airflow {' '.join(words)} failed:\n{self.log_tail(name)}")

    def stop(self) -> None:
        """End every process that was started here, tasks and their commands too; none is left."""
        end_marked(str(self.home), STOP_SECONDS)
        for process in self._processes.values():
            process.wait()
        self._processes = {}

    def __enter__(self) -> AirflowSandbox:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log_tail(self, component: str) -> str:
        """The end of a component's log."""
        path = self.home / f"{component}.log"
        if not path.exists():
            return ""
        return "\n".join(path.read_text(errors="replace").splitlines()[-LAST_LINES:])

    def _access(self) -> dict[str, str | int]:
        access: dict[str, str | int] = json.loads((self.home / "access.json").read_text())
        return access

    def _make_access(self) -> None:
        """Keys, password and port, kept from start to start where they can be."""
        path = self.home / "access.json"
        if path.exists():
            access = self._access()
        else:
            access = {
                "password": secrets.token_urlsafe(12),
                "fernet": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "secret": secrets.token_urlsafe(32),
                "port": 0,
            }
        access["port"] = _free_port(self.port) if self.port else _free_port(int(access["port"]), or_any=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(access))
        passwords = self.home / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps({USER: access["password"]}))

    def _environment(self) -> dict[str, str]:
        access = self._access()
        settings = {
            "CORE__DAGS_FOLDER": REPOSITORY / "dags",
            "CORE__PLUGINS_FOLDER": REPOSITORY / "plugins",
            "CORE__LOAD_EXAMPLES": False,
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": self.parallelism,
            "CORE__FERNET_KEY": access["fernet"],
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": self.home / "passwords.json",
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            # A scheduler that waited in vain for the one writer gives up for good: more than SQLite's 5 s.
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home / 'airflow.db'}?timeout=60",
            "API__HOST": HOST,
            "API__PORT": access["port"],
            "API__BASE_URL": self.url,
            "API__SECRET_KEY": access["secret"],
            "API_AUTH__JWT_SECRET": access["secret"],
            "LOGGING__BASE_LOG_FOLDER": self.home / "logs",
            # A run goes from step to step as fast as the scheduler looks.
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.5,
            "DAG_PROCESSOR__PARSING_PROCESSES": 1,
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 60,
            **self.settings,
        }
        return {
            **os.environ,
            **self.env,
            MARKER: str(self.home),
            "SPT_NOENV": "1",  # else setproctitle writes over the environment, and the marker with it
            "AIRFLOW_HOME": str(self.home),
            "STATICJOB_JOBS": str(self.jobs.resolve()),
            "STATICJOB_PYTHON": sys.executable,
            "PYTHONPATH": str(REPOSITORY),
            **{f"AIRFLOW__{key}": str(value) for key, value in settings.items()},
        }

    def _migrate(self) -> None:
        """Make the database's tables, once for each version of Airflow."""
        done = self.home / f"migrated-{version('apache-airflow-core')}"
        if done.exists():
            return
        self.run("db", "migrate")
        done.touch()

    def _spawn(
        self, name: str, command: tuple[str, ...], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "airflow", *command],
                cwd=self.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        api = AirflowApi(self.url, USER, self.password)
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise InfrastructureError(
                        f"airflow {name} ended with exit code {process.returncode}:\n{self.log_tail(name)}"
                    )
            unhealthy = api.unhealthy()
            if not unhealthy:
                return
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"airflow: {', '.join(unhealthy)} not healthy after {START_SECONDS:.0f} s; "
                    f"see the logs in {self.home}"
                )
            time.sleep(0.3)


def _free_port(wanted: int, *, or_any: bool = False) -> int:
    """`wanted` when it is free; else any free port with `or_any`, else ConfigError."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, wanted))
        except OSError:
            if not or_any:
                raise ConfigError(
                    f"port {wanted} on {HOST} is taken; stop its owner or choose another port"
                ) from None
            probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
