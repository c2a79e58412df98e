"""One object of a store, told from any that takes its place."""

from __future__ import annotations

from pydantic import Field

from staticjob.records.record import Record


class PinnedObject(Record):
    """One object as it was when the job was prepared; reading it later must find the same bytes."""

    uri: str
    size: int
    version: str = Field(description="ETag (and version id) on S3; size, mtime_ns and inode on disk")
