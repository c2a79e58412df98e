"""Which URIs a job may name, checked where the job is read instead of where the first object is missing."""

from __future__ import annotations

import re
from pathlib import Path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_KNOWN = re.compile(r"s3://[^/]|file:///")


def checked_uri(uri: str) -> str:
    """`uri` with a leading `~` expanded; s3://bucket/key, file:///path and plain paths are known.

    Raises ValueError for an empty URI and for another scheme, which would be taken for a folder's name.
    """
    if not uri.strip():
        raise ValueError("is empty; give s3://bucket/prefix or a local path")
    if _SCHEME.match(uri) and not _KNOWN.match(uri):
        raise ValueError(f"{uri!r} is neither s3://bucket/key, file:///path nor a plain path")
    return str(Path(uri).expanduser()) if uri.startswith("~") else uri
