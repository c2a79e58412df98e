"""Objects on S3 and stores that speak its protocol."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from botocore.exceptions import ClientError

from staticjob.errors import ConfigError, DataError, InfrastructureError
from staticjob.storage import failures
from staticjob.storage.client import call
from staticjob.storage.multipart import Upload
from staticjob.storage.pinned import PinnedObject

BUCKET_NAME = re.compile(r"[A-Za-z0-9._-]{3,255}")
DELETE_BATCH = 1000  # most keys of one DeleteObjects request


def split_uri(uri: str) -> tuple[str, str]:
    """Bucket and key of an s3:// URI; the key is taken literally (no percent-decoding)."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not BUCKET_NAME.fullmatch(bucket):
        raise ConfigError(f"{uri}: {bucket!r} cannot be a bucket's name; expected s3://bucket/key")
    return bucket, key


def list_objects(uri: str) -> list[PinnedObject]:
    bucket, key = split_uri(uri)
    folder = key.rstrip("/")
    found = _list_prefix(bucket, f"{folder}/" if folder else "", uri)
    if found or key.endswith("/") or not key:
        return found
    named = head(uri)
    return [named] if named else []


def _list_prefix(bucket: str, prefix: str, uri: str) -> list[PinnedObject]:
    found: list[PinnedObject] = []
    query = {"Bucket": bucket, "Prefix": prefix}
    while True:
        page = call(lambda client, _: client.list_objects_v2(**query), uri, "list")
        found.extend(
            _pin(f"s3://{bucket}/{item['Key']}", item["Size"], item["ETag"])
            for item in page.get("Contents", ())
        )
        if not page.get("IsTruncated"):
            return found
        query["ContinuationToken"] = page["NextContinuationToken"]


def head(uri: str) -> PinnedObject | None:
    bucket, key = split_uri(uri)
    try:
        answer = call(lambda client, _: client.head_object(Bucket=bucket, Key=key), uri, "look up")
    except DataError:
        return None
    return _pin(uri, answer["ContentLength"], answer["ETag"])


def read(uri: str) -> bytes:
    return _get(uri, None, {})


def read_range(uri: str, start: int, length: int, pin: PinnedObject | None = None) -> bytes:
    return _get(uri, pin, {"Range": f"bytes={start}-{start + length - 1}"})


def _get(uri: str, pin: PinnedObject | None, options: dict[str, str]) -> bytes:
    bucket, key = split_uri(uri)
    if pin:
        options = {**options, "IfMatch": f'"{pin.version}"'}

    def request(client: Any, _: int) -> tuple[bytes, str]:
        try:
            answer = client.get_object(Bucket=bucket, Key=key, **options)
        except ClientError as error:
            if failures.code_of(error) == "InvalidRange":  # starts at or past the end
                return b"", pin.version if pin else ""
            raise
        return answer["Body"].read(), answer["ETag"].strip('"')

    try:
        data, version = call(request, uri, "read")
    except ClientError:
        raise _changed(uri) from None
    except DataError:
        if pin:
            raise DataError(
                f"{uri}: gone since the plan; restore it, or run again to plan the input as it is"
            ) from None
        raise
    if pin and version != pin.version:  # the store does not know If-Match
        raise _changed(uri)
    return data


def _changed(uri: str) -> DataError:
    return DataError(f"{uri}: changed since the plan; run again to plan the input as it is now")


def put(uri: str, data: bytes) -> None:
    bucket, key = split_uri(uri)
    call(lambda client, _: client.put_object(Bucket=bucket, Key=key, Body=data), uri, "write")


def put_if_absent(uri: str, data: bytes) -> bool:
    bucket, key = split_uri(uri)
    attempts = 0

    def request(client: Any, tried: int) -> None:
        nonlocal attempts
        attempts = tried
        client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")

    try:
        call(request, uri, "write")
    except ClientError:
        # An earlier attempt may have written the object although its answer was lost.
        return attempts > 0 and read(uri) == data
    return True


@contextmanager
def writer(uri: str) -> Iterator[BinaryIO]:
    bucket, key = split_uri(uri)
    upload = Upload(uri, bucket, key)
    try:
        yield cast(BinaryIO, upload)
        upload.publish()
    except BaseException:  # an interrupt too: parts of an open upload are billed
        upload.abort()
        raise


def delete(uris: Iterable[str]) -> None:
    keys: dict[str, list[str]] = {}
    for uri in uris:
        bucket, key = split_uri(uri)
        keys.setdefault(bucket, []).append(key)
    for bucket, names in keys.items():
        for start in range(0, len(names), DELETE_BATCH):
            _delete_batch(bucket, names[start : start + DELETE_BATCH])


def _delete_batch(bucket: str, names: list[str]) -> None:
    request = {"Bucket": bucket, "Delete": {"Objects": [{"Key": name} for name in names], "Quiet": True}}
    answer = call(lambda client, _: client.delete_objects(**request), f"s3://{bucket}", "delete from")
    for problem in answer.get("Errors", ()):
        raise InfrastructureError(
            f"cannot delete s3://{bucket}/{problem['Key']}: {problem['Code']}; run again or delete it by hand"
        )


def _pin(uri: str, size: int, etag: str) -> PinnedObject:
    return PinnedObject(uri=uri, size=size, version=etag.strip('"'))
