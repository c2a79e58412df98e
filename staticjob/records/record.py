"""The base of everything that is stored as JSON or crosses a boundary."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Immutable, and strict about unknown fields: a stored object of another version is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
