"""What `plan` decides: the ladder, the chunks, which task runs which, and what it will take."""

from __future__ import annotations

from pydantic import Field

from staticjob.ledger import Ledger
from staticjob.records.memory import MemoryPlan
from staticjob.records.rates import Forecast, Rates
from staticjob.records.record import Record
from staticjob.records.status import WITH_RESULT, RowError, Status


class Rung(Record):
    """One shape of the ladder and what the plan runs in it."""

    length: int
    batch: int
    rows: int
    batches: int
    ledger: Ledger


class Span(Record):
    """Rows `start..stop` of one part, whose ids are tokens `token_start..token_stop` of it."""

    part: str
    start: int
    stop: int
    token_start: int
    token_stop: int


class Chunk(Record):
    """A whole number of batches of one rung: the unit of retry and of commit.

    Batch i holds rows `i * batch` to `(i + 1) * batch` of the spans laid end to end; the
    last batch of the last chunk of a rung may hold fewer and is filled with dummy rows.
    """

    id: str = Field(description="identity by content: rung, batch and spans; never by position")
    length: int
    batch: int
    batches: int
    rows: int
    spans: tuple[Span, ...]
    ledger: Ledger


class MergeGroup(Record):
    """Output files written by one merge task."""

    id: str
    files: tuple[int, ...]
    items: int


class Orders(Record):
    """Slots the same rows cost in three orders."""

    arrival: int = Field(description="arrival order, 32 rows a batch, padded to the longest")
    sorted: int = Field(description="fully sorted, 32 rows a batch, padded to the longest")
    ladder: int = Field(description="this plan")


class Plan(Record):
    """`plan.json`: everything the run will do, decided before a device is touched."""

    fingerprint: str
    token_budget: int
    rungs: tuple[Rung, ...] = Field(description="longest first")
    chunks: tuple[Chunk, ...] = Field(description="longest first")
    packs: tuple[tuple[str, ...], ...] = Field(
        description="chunk ids by mapped task: one process loads the model once and runs them in turn"
    )
    groups: tuple[MergeGroup, ...]
    file_rows: tuple[int, ...] = Field(description="rows of every input file, by file index")
    kept_schema: str = Field(description="base64 of the unified Arrow IPC schema of the kept columns")
    statuses: dict[Status, int] = Field(description="items per status: rows, or the elements of lists")
    first_errors: tuple[RowError, ...]
    ledger: Ledger
    orders: Orders
    memory: MemoryPlan
    rates: Rates | None
    forecast: Forecast

    @property
    def answered(self) -> dict[Status, int]:
        """Items per status that tokenize answered: no chunk runs them."""
        return {status: items for status, items in self.statuses.items() if status not in WITH_RESULT}

    @property
    def items(self) -> int:
        """Rows, or the elements of rows that are lists."""
        return sum(self.statuses.values())
