"""One format for every stored time."""

from __future__ import annotations

import datetime as dt


def now() -> str:
    """UTC, ISO 8601 to the millisecond; such strings sort as the times do."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
