"""A receiver of StatsD on the loopback, as an exporter for Prometheus is one: it keeps what arrives."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# `name,tag=value,…:value|kind`: StatsD with the tags of InfluxDB.
LINE = re.compile(r"(?P<name>[^,:|]+)(?P<tags>(?:,[^,:|]+)*):(?P<value>[^|]+)\|(?P<kind>\w+)")


@dataclass(frozen=True)
class Sent:
    """One value of a metric. kind: c, a counter's increment; g, a gauge."""

    name: str
    tags: dict[str, str]
    value: float
    kind: str


@dataclass
class Received:
    """All that has arrived at `port`, in order."""

    port: int
    lines: list[str] = field(default_factory=list)

    def of(self, dag_id: str) -> list[Sent]:
        """Metrics of this project's with that tag `dag_id`."""
        matches = [LINE.fullmatch(line) for line in self.lines if line.startswith("airflow.staticjob.")]
        assert None not in matches, self.lines
        found = []
        for match in filter(None, matches):
            tags = dict(tag.split("=") for tag in match["tags"].split(",")[1:])
            found.append(Sent(match["name"], tags, float(match["value"]), match["kind"]))
        return [sent for sent in found if sent.tags["dag_id"] == dag_id]


@contextmanager
def statsd_server() -> Iterator[Received]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.2)
        received, ended = Received(server.getsockname()[1]), threading.Event()

        def receive() -> None:
            while not ended.is_set():
                try:
                    received.lines += server.recv(65536).decode().splitlines()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        try:
            yield received
        finally:
            ended.set()
            thread.join()
