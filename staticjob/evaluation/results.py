"""What comes of a sweep: each point's numbers, side by side."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from staticjob.records.record import Record


class Value(Record):
    """A metric's value over `units`, and its 95% interval."""

    value: float
    low: float
    high: float
    units: int


class PointResult(Record):
    """What came of one point."""

    settings: dict[str, Any]
    output: str
    metrics: dict[str, Value]
    rows: int
    useful_tokens: int
    useful_share: float
    seconds: float = Field(description="on the device, engine starts included")
    cost: float | None


class SweepResult(Record):
    """`sweep.json`."""

    name: str
    points: tuple[PointResult, ...]
