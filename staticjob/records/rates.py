"""Measured speed, and the time and cost that follow from it."""

from __future__ import annotations

from pydantic import Field

from staticjob.records.record import Record


class ShapeRate(Record):
    """Measured time of one batch of one shape."""

    length: int
    batch: int
    seconds: float


class Ceilings(Record):
    """What a device does at best, by measurement."""

    flops: float = Field(description="per second, one large matrix product in the engine's type")
    bytes_per_second: float = Field(description="read plus written, one large copy")


class Rates(Record):
    """Measured speed of a model on a device, for forecasts."""

    device: str
    dtype: str
    shapes: tuple[ShapeRate, ...]
    start_seconds: float = Field(description="process start to first batch: imports, weights, capture")
    rung_seconds: float = Field(description="what one more rung costs: warm-up and capture")
    source: str = Field(description="'calibration' or the run the rates were measured in")
    ceilings: Ceilings | None = Field(default=None, description="of the device, where they were measured")


class Forecast(Record):
    """Time and cost of the run, before anything is spent; None where no rate is known."""

    seconds: float | None
    cost: float | None
    cost_per_million_useful_tokens: float | None
    basis: str = Field(description="where the rates come from, for people to read")
