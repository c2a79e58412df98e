"""What a report says, as data: the same numbers are stored as `report.json` and drawn as HTML."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from staticjob.ledger import Ledger
from staticjob.records.memory import MemoryTerm
from staticjob.records.plan import Orders
from staticjob.records.rates import Ceilings
from staticjob.records.record import Record
from staticjob.records.status import RowError, Status
from staticjob.report.texts import TextsReport


class RungReport(Record):
    """One shape: what was planned, what has run, and how fast."""

    length: int
    batch: int
    rows: int
    batches: int
    ledger: Ledger = Field(description="as planned")
    done: Ledger = Field(description="of the committed chunks")
    useful_share: float
    predicted_seconds: float | None = Field(description="compute of the whole rung, from the plan's rates")
    seconds: float | None = Field(description="measured compute, scaled to the whole rung where part has run")
    seconds_per_batch: float | None
    useful_tokens_per_second: float | None
    flops: float | None = Field(description="achieved per second, padding and dummies included")
    useful_flops: float | None = Field(description="of these, the useful slots' share")
    bytes_per_second: float | None = Field(description="least traffic of one pass over its time")
    predicted_bytes: int | None
    measured_bytes: int | None


class TimeReport(Record):
    """Device seconds: forecast, and measured by part."""

    predicted: float | None
    basis: str
    measured: float | None = Field(description="all parts below; None before the first commit")
    compute: float = Field(description="in the engine")
    start: float = Field(description="engine starts: imports, weights, warm-up or capture")
    other: float = Field(description="reading tokens, assembling batches, storing results")
    kept_batches: int = Field(description="batches kept from earlier tries, whose time is not counted here")


class CostReport(Record):
    """Money, where the job states a price."""

    gpu_hour: float | None
    predicted: float | None
    measured: float | None
    predicted_per_million: float | None = Field(description="per million useful tokens")
    measured_per_million: float | None


class MemoryReport(Record):
    """Peak bytes: predicted term by term, and measured."""

    device: str
    available: int | None
    predicted: int
    measured: int | None
    terms: tuple[MemoryTerm, ...] = Field(description="of the largest shape")
    shape: tuple[int, int] | None = Field(description="length and batch of the largest shape")


class RunAgain(Record):
    """Everything needed to run the job again."""

    fingerprint: str
    command: str
    settings: str = Field(description="the resolved job file, as YAML")
    model_source: str
    model_digest: str
    device: str
    dtype: str
    versions: dict[str, str]
    workers: tuple[str, ...]


class Report(Record):
    """`report.json`."""

    job: str
    task: str
    state: Literal["done", "unfinished"]
    input: str
    output: str
    generated: str
    files: int
    rows: int
    items: int = Field(description="rows, or the elements of rows that are lists")
    statuses: dict[Status, int] = Field(description="items answered so far")
    rows_pending: int
    chunks_done: int
    chunks: int
    tokens: int = Field(description="useful tokens of all runnable rows")
    ledger: Ledger = Field(description="as planned")
    paid: Ledger = Field(description="of the committed chunks")
    useful_share: float
    orders: Orders
    rungs: tuple[RungReport, ...] = Field(description="longest first")
    useful_tokens_per_second: float | None = Field(description="over all device seconds")
    time: TimeReport
    cost: CostReport
    memory: MemoryReport
    ceilings: Ceilings | None
    texts: TextsReport | None = Field(description="of a task that generates")
    errors: tuple[RowError, ...]
    again: RunAgain
