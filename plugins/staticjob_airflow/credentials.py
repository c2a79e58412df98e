"""S3 as an Airflow connection describes it: read by the run page, handed to a step by its environment.

Keys that do not expire become the usual variables. Those of a role do expire, and a chunk may run
for hours: the step is then given the address of a server in the task's own process, on the
loopback, where it asks for the keys as in a container of AWS, again and again.
"""

from __future__ import annotations

import datetime as dt
import hmac
import json
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException

# Whatever else says who the worker is, the connection is meant.
OTHER_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_CREDENTIAL_EXPIRATION",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)
# botocore renews keys 15 minutes before their end and never hands out any with less than 10 minutes
# left. A step that is told 20 minutes asks again after 5, so what it has is always valid.
LEASE = dt.timedelta(minutes=20)


@dataclass(frozen=True)
class Access:
    """What a connection says of a store. session: boto3's, with the connection's region and credentials."""

    session: Any
    endpoint: str | None


def connected(conn_id: str) -> Access:
    """Look a connection up, and its credentials.

    Raises AirflowNotFoundException for an unknown connection, to be tried again: Airflow says the same
    when a secrets backend does not answer. AirflowFailException for one that gives no credentials.
    """
    BaseHook.get_connection(conn_id)  # the hook would fall back to this machine's own credentials
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    hook = S3Hook(aws_conn_id=conn_id)
    session = hook.get_session()
    if session.get_credentials() is None:
        raise AirflowFailException(
            f"connection {conn_id}: gives no credentials; fill in its keys or role_arn, or leave "
            "airflow.aws_conn_id out"
        )
    return Access(session, hook.conn_config.get_service_endpoint_url("s3"))


@contextmanager
def step_environment(conn_id: str | None) -> Iterator[dict[str, str]]:
    """The environment of a step within the block; without a connection it is the worker's own.

    Raises what `connected` raises.
    """
    if conn_id is None:
        yield dict(os.environ)
        return
    access = connected(conn_id)
    place = {"AWS_ENDPOINT_URL": access.endpoint, "AWS_DEFAULT_REGION": access.session.region_name}
    own = {name: value for name, value in os.environ.items() if name not in OTHER_CREDENTIALS}
    with handed_over(access.session.get_credentials()) as keys:
        yield {**own, **{name: value for name, value in place.items() if value}, **keys}


@contextmanager
def handed_over(credentials: Any) -> Iterator[dict[str, str]]:
    """Variables from which a process takes these botocore credentials while the block lasts."""
    from botocore.credentials import RefreshableCredentials

    if isinstance(credentials, RefreshableCredentials):
        with _served(credentials) as variables:
            yield variables
        return
    keys = credentials.get_frozen_credentials()
    variables = {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
    yield variables | ({"AWS_SESSION_TOKEN": keys.token} if keys.token else {})


@contextmanager
def _served(credentials: Any) -> Iterator[dict[str, str]]:
    password = secrets.token_urlsafe(32)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not hmac.compare_digest(self.headers.get("Authorization", ""), password):
                self.send_error(403)
                return
            keys = credentials.get_frozen_credentials()  # renewed here when they are about to expire
            answer = {
                "AccessKeyId": keys.access_key,
                "SecretAccessKey": keys.secret_key,
                "Token": keys.token,
                "Expiration": (dt.datetime.now(dt.UTC) + LEASE).isoformat(),
            }
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: the task's log is for the step."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{server.server_port}/",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": password,
                # botocore would look into these files first.
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                "AWS_CONFIG_FILE": os.devnull,
            }
        finally:
            server.shutdown()
