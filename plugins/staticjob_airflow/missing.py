"""Waits in the triggerer, without a worker, until something lies at a job's input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.amazon.aws.hooks.s3 import S3Hook
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async


class InputTrigger(BaseTrigger):
    """Fires once an object that is not empty lies beneath an s3:// URI.

    Whether it is data is for `prepare` to say. It has just looked, and whoever writes the input is
    given time: the first look comes after one pause.

    uri: as in the job. aws_conn_id: connection, None for the triggerer's own credentials.
    pause: seconds between two looks.
    """

    def __init__(self, uri: str, aws_conn_id: str | None, pause: float) -> None:
        super().__init__()
        self.uri = uri
        self.aws_conn_id = aws_conn_id
        self.pause = pause

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Import path and arguments, from which the triggerer makes it again."""
        arguments = {"uri": self.uri, "aws_conn_id": self.aws_conn_id, "pause": self.pause}
        return f"{__name__}.{type(self).__name__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event; a store that does not answer fails the task, to be retried."""
        while True:
            await asyncio.sleep(self.pause)
            if await sync_to_async(self._found)():
                yield TriggerEvent({"found": self.uri})
                return

    def _found(self) -> bool:
        bucket, _, prefix = self.uri.removeprefix("s3://").partition("/")
        client = S3Hook(aws_conn_id=self.aws_conn_id).get_conn()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        found = (item for page in pages for item in page.get("Contents", []) if item["Size"])
        folder = prefix if prefix.endswith("/") or not prefix else f"{prefix}/"  # data is not data2
        return any(item["Key"] == prefix or item["Key"].startswith(folder) for item in found)
