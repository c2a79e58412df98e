"""The boto3 client: one per process, unless a block is given another, and one way to call it with retries."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError as TransportError

from staticjob.errors import ConfigError
from staticjob.storage import failures
from staticjob.storage.retry import Patience, attempt, from_environment

Result = TypeVar("Result")


class _Shared:
    """The client in use and what it was made from; made anew in a forked child."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made_from: object = None
        self.client: Any = None


_shared = _Shared()
_given: ContextVar[Any] = ContextVar("given", default=None)


def _after_fork() -> None:
    # A child must share neither the parent's connections nor a lock another thread may have held.
    global _shared  # noqa: PLW0603
    _shared = _Shared()


os.register_at_fork(after_in_child=_after_fork)


def client() -> Any:
    """The S3 client; thread-safe, and made anew when the AWS variables of the environment change."""
    given = _given.get()
    if given is not None:
        return given
    patience = from_environment()
    source = (patience, sorted((k, v) for k, v in os.environ.items() if k.startswith("AWS_")))
    shared = _shared
    with shared.lock:
        if shared.made_from != source:
            shared.client, shared.made_from = make_client(boto3.session.Session(), patience), source
        return shared.client


@contextmanager
def using(given: Any) -> Iterator[None]:
    """Have the block, and threads that run in a copy of its context, use this client; None: the process's."""
    before = _given.set(given)
    try:
        yield
    finally:
        _given.reset(before)


def forget_client() -> None:
    """Have the next call look for credentials anew."""
    _shared.made_from = None


def call(request: Callable[[Any, int], Result], uri: str, doing: str) -> Result:
    """The result of `request(client, attempt)`, tried again while the fault may pass.

    Expired credentials are looked up anew once. Raises the one-line error of `failures.explain`,
    except for a condition that did not hold (If-Match, If-None-Match): that ClientError is the
    caller's to explain.
    """
    renewed = False

    def once(tried: int) -> Result:
        nonlocal renewed
        try:
            return request(client(), tried)
        except ClientError as error:
            if renewed or not failures.is_expired(error):
                raise
        renewed = True
        forget_client()
        return request(client(), tried)

    try:
        return attempt(once, from_environment(), failures.is_transient)
    except (BotoCoreError, ClientError, TransportError, OSError) as error:
        if failures.is_changed(error):
            raise
        raise failures.explain(error, uri, doing) from error


def make_client(session: boto3.session.Session, patience: Patience, endpoint: str | None = None) -> Any:
    """A client with the session's credentials. endpoint: None for the environment's, else AWS's own."""
    # Stores named by an endpoint seldom resolve bucket.host, AWS itself always does.
    own_endpoint = endpoint or "AWS_ENDPOINT_URL" in os.environ or "AWS_ENDPOINT_URL_S3" in os.environ
    settings = Config(
        connect_timeout=min(patience.timeout, 10.0),
        read_timeout=patience.timeout,
        retries={"total_max_attempts": 1, "mode": "standard"},  # `attempt` repeats, bodies included
        max_pool_connections=32,
        tcp_keepalive=True,
        # Stores that do not know chunked trailers would keep them as part of the object.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if own_endpoint else None,
    )
    try:
        return session.client("s3", config=settings, endpoint_url=endpoint)
    except ValueError as error:
        raise ConfigError(f"S3 client: {error}; check the endpoint's URL (AWS_ENDPOINT_URL)") from None
