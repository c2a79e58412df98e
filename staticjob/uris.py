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


def writable_uri(uri: str) -> str:
    """`uri` unless it is an s3:// folder with empty or dotted names, which stores spell in several ways.

    Raises ValueError: what is written under one spelling would be looked for under another.
    """
    names = uri.removeprefix("s3://").rstrip("/").split("/")
    if uri.startswith("s3://") and not {"", ".", ".."}.isdisjoint(names):
        raise ValueError(f"{uri!r} has an empty or dotted name between slashes; write single slashes")
    return uri


def absolute_uri(uri: str) -> str:
    """`uri`, a relative path as an absolute one: what is written there is found from every folder."""
    return uri if "://" in uri or Path(uri).is_absolute() else str(Path(uri).absolute())
