"""Objects by URI: `s3://bucket/key` and local paths (plain or `file://`), with the same functions.

Every function raises one-line errors: DataError for an object that is missing or changed,
ConfigError for a missing bucket or refused credentials, InfrastructureError when the store,
network or disk failed after retries. Writes are atomic: a reader sees the old object, the new
one or none, never a part.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from staticjob.errors import DataError
from staticjob.storage.pinned import PinnedObject
from staticjob.storage.ranges import RangeReader

Model = TypeVar("Model", bound=BaseModel)

S3_SCHEME = "s3://"


class Store(Protocol):
    """What `storage.s3` and `storage.local` each offer."""

    def list_objects(self, uri: str) -> list[PinnedObject]: ...
    def head(self, uri: str) -> PinnedObject | None: ...
    def read(self, uri: str) -> bytes: ...
    def read_range(self, uri: str, start: int, length: int, pin: PinnedObject | None = None) -> bytes: ...
    def put(self, uri: str, data: bytes) -> None: ...
    def put_if_absent(self, uri: str, data: bytes) -> bool: ...
    def writer(self, uri: str) -> AbstractContextManager[BinaryIO]: ...
    def delete(self, uris: Iterable[str]) -> None: ...


def is_s3(uri: str) -> bool:
    return uri.startswith(S3_SCHEME)


def _store(uri: str) -> Store:
    # Imported here so that local jobs and `--help` never load boto3.
    if is_s3(uri):
        from staticjob.storage import s3

        return s3
    from staticjob.storage import local

    return local


def list_objects(uri: str) -> list[PinnedObject]:
    """All objects beneath the folder `uri`, by URI; or the one object that `uri` names; or none.

    The folder `data` holds `data/a` but neither `data2/b` nor `data-old/c`.
    """
    return _store(uri).list_objects(uri)


def head(uri: str) -> PinnedObject | None:
    """The object as it is now; None when there is none."""
    return _store(uri).head(uri)


def read(uri: str) -> bytes:
    """The whole object."""
    return _store(uri).read(uri)


def find(uri: str) -> bytes | None:
    """The whole object, or None when there is none: one request either way."""
    try:
        return read(uri)
    except DataError:  # without a pin, all it can mean is that the object is missing
        return None


def read_range(source: PinnedObject | str, start: int, length: int) -> bytes:
    """Bytes `start` to `start + length` (fewer at the end of the object), checked against a pin if given."""
    if length <= 0:
        return b""
    if isinstance(source, str):
        return _store(source).read_range(source, start, length)
    return _store(source.uri).read_range(source.uri, start, length, source)


def open_pinned(pin: PinnedObject) -> RangeReader:
    """A seekable file over the pinned object; reading raises DataError once the object has changed."""
    store = _store(pin.uri)
    return RangeReader(pin.size, lambda start, length: store.read_range(pin.uri, start, length, pin))


def put(uri: str, data: bytes) -> None:
    """Write an object, replacing any earlier one."""
    _store(uri).put(uri, data)


def put_if_absent(uri: str, data: bytes) -> bool:
    """Write an object unless there is one: True for the one writer whose bytes are stored."""
    return _store(uri).put_if_absent(uri, data)


def writer(uri: str) -> AbstractContextManager[BinaryIO]:
    """A stream whose object appears on a clean exit; an exception inside leaves nothing behind."""
    return _store(uri).writer(uri)


def delete(uris: Iterable[str]) -> None:
    """Delete objects; those that do not exist are passed over."""
    local: list[str] = []
    remote: list[str] = []
    for uri in uris:
        (remote if is_s3(uri) else local).append(uri)
    for group in (local, remote):
        if group:
            _store(group[0]).delete(group)


def put_json(uri: str, model: BaseModel) -> None:
    put(uri, _to_json(model))


def put_json_if_absent(uri: str, model: BaseModel) -> bool:
    return put_if_absent(uri, _to_json(model))


def read_json(uri: str, cls: type[Model]) -> Model:
    """A stored record; DataError when it is missing or not a `cls` (e.g. of another version)."""
    return _from_json(uri, read(uri), cls)


def find_json(uri: str, cls: type[Model]) -> Model | None:
    """A stored record, or None when there is no such object; DataError when it is not a `cls`."""
    data = find(uri)
    return None if data is None else _from_json(uri, data, cls)


def _to_json(model: BaseModel) -> bytes:
    return model.model_dump_json().encode()


def _from_json(uri: str, data: bytes, cls: type[Model]) -> Model:
    try:
        return cls.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        if not where:
            raise DataError(f"{uri}: damaged ({first['msg']}); delete it and run again") from None
        raise DataError(
            f"{uri}: not a {cls.__name__} this version can read ({where}: {first['msg']}); "
            "use the version that wrote it, or start again under another output"
        ) from None
