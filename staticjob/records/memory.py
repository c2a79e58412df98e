"""Memory as predicted, term by term."""

from __future__ import annotations

from pydantic import Field

from staticjob.records.record import Record


class MemoryTerm(Record):
    """One addend of the memory prediction."""

    name: str
    bytes: int
    formula: str = Field(description="the arithmetic with its numbers, for people to check")


class ShapeMemory(Record):
    """Predicted peak for one shape: the sum of its terms."""

    length: int
    batch: int
    terms: tuple[MemoryTerm, ...]
    bytes: int


class MemoryPlan(Record):
    """Predicted peak per rung against what the device has."""

    device: str
    dtype: str
    available: int | None = Field(description="bytes; None where the device is unknown at plan time")
    shapes: tuple[ShapeMemory, ...]
    peak: int
