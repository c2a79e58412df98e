"""The store of a run for those in Airflow who look at it: by the connection of its DAG, and to read only."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowException
from botocore.exceptions import BotoCoreError, ClientError

from staticjob.errors import ConfigError
from staticjob.storage import client, retry
from staticjob_airflow.credentials import connected

# An edited connection is looked at again after so long; until then one client serves all.
KEPT_SECONDS = 60.0
READING = ("GET", "HEAD")


class Stores:
    """One client for each connection, shared by all threads of the process."""

    def __init__(self) -> None:
        self._clients: dict[str, tuple[float, Any]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, conn_id: str | None) -> Iterator[None]:
        """Have the block read by this connection; None: with the credentials of the process itself.

        Raises ConfigError for a connection that is unknown here or gives no credentials.
        """
        with client.using(None if conn_id is None else self._client(conn_id)):
            yield

    def _client(self, conn_id: str) -> Any:
        with self._lock:
            made, found = self._clients.get(conn_id, (0.0, None))
        if found is None or time.monotonic() - made > KEPT_SECONDS:
            found = _reader(conn_id)  # without the lock: a role that cannot be had must not hold up others
            with self._lock:
                self._clients[conn_id] = time.monotonic(), found
        return found


def _reader(conn_id: str) -> Any:
    """A client that refuses whatever does not read, whatever the connection's rights are."""
    try:
        access = connected(conn_id)
    except (AirflowException, BotoCoreError, ClientError) as error:
        raise ConfigError(f"airflow.aws_conn_id {conn_id}, as seen from here: {error}") from None
    made = client.make_client(access.session, retry.from_environment(), access.endpoint)
    made.meta.events.register("before-call.s3", _refuse_writing)
    return made


def _refuse_writing(model: Any, **_: Any) -> None:
    if model.http["method"] not in READING:
        raise ConfigError(f"S3 {model.name}: refused, here is only read")
