"""A stream that becomes an S3 object when it is published: one put if small, else a multipart upload."""

from __future__ import annotations

import io
import secrets
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from staticjob.errors import StaticJobError
from staticjob.storage import failures
from staticjob.storage.client import call

if TYPE_CHECKING:
    from typing_extensions import Buffer

PART_BYTES = 8 * 1024 * 1024
PARTS_OF_ONE_SIZE = 1000
PARTS_IN_FLIGHT = 3
OWNER = "staticjob-upload"  # metadata that tells our upload from another's


def part_bytes(number: int) -> int:
    """Size of part `number` (from 1): grows so that 10,000 parts, the most S3 takes, hold 430 GiB."""
    return PART_BYTES * (1 + (number - 1) // PARTS_OF_ONE_SIZE)


class Upload(io.RawIOBase):
    """Takes bytes; at most PARTS_IN_FLIGHT + 1 parts are in memory, however many are written.

    Nothing is visible before `publish`; `abort` leaves neither an object nor an open upload.
    """

    def __init__(self, uri: str, bucket: str, key: str) -> None:
        super().__init__()
        self._uri = uri
        self._target = {"Bucket": bucket, "Key": key}
        self._owner = secrets.token_hex(8)
        self._upload_id: str | None = None
        self._buffer = bytearray()
        self._written = 0
        self._parts: list[dict[str, Any]] = []
        self._started = 0
        self._threads = ThreadPoolExecutor(PARTS_IN_FLIGHT, thread_name_prefix="upload")
        self._in_flight: deque[Future[dict[str, Any]]] = deque()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        self._buffer += view
        self._written += len(view)
        while len(self._buffer) >= (size := part_bytes(self._started + 1)):
            self._start_part(bytes(memoryview(self._buffer)[:size]))
            del self._buffer[:size]
        return len(view)

    def publish(self) -> None:
        """Make the object visible, with all that was written."""
        if self._upload_id is None:
            body = bytes(self._buffer)
            call(lambda client, _: client.put_object(**self._target, Body=body), self._uri, "write")
        else:
            if self._buffer:
                self._start_part(bytes(self._buffer))
            while self._in_flight:
                self._parts.append(self._in_flight.popleft().result())
            self._complete()
        self._threads.shutdown()

    def abort(self) -> None:
        """Drop all that was written."""
        self._threads.shutdown(cancel_futures=True)  # a part that arrived after the abort would stay
        if self._upload_id is None:
            return
        upload = {**self._target, "UploadId": self._upload_id}
        try:
            call(lambda client, _: client.abort_multipart_upload(**upload), self._uri, "abort the upload of")
        except StaticJobError:
            # The failure that led here is the one to report; the bucket's lifecycle rule ends the upload.
            return

    def _start_part(self, body: bytes) -> None:
        if self._upload_id is None:
            answer = call(
                lambda client, _: client.create_multipart_upload(
                    **self._target, Metadata={OWNER: self._owner}
                ),
                self._uri,
                "write",
            )
            self._upload_id = answer["UploadId"]
        if len(self._in_flight) == PARTS_IN_FLIGHT:
            self._parts.append(self._in_flight.popleft().result())
        self._started += 1
        self._in_flight.append(self._threads.submit(self._send, self._started, body))

    def _send(self, number: int, body: bytes) -> dict[str, Any]:
        part = {**self._target, "UploadId": self._upload_id, "PartNumber": number}
        answer = call(lambda client, _: client.upload_part(**part, Body=body), self._uri, "write")
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _complete(self) -> None:
        upload = {**self._target, "UploadId": self._upload_id, "MultipartUpload": {"Parts": self._parts}}

        def request(client: Any, tried: int) -> None:
            try:
                client.complete_multipart_upload(**upload)
            except ClientError as error:
                # An earlier attempt may have completed it although its answer was lost.
                if not (tried and failures.code_of(error) == "NoSuchUpload" and self._is_published(client)):
                    raise

        call(request, self._uri, "write")

    def _is_published(self, client: Any) -> bool:
        metadata: dict[str, str] = client.head_object(**self._target)["Metadata"]
        return metadata.get(OWNER) == self._owner
