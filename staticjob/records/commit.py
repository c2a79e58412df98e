"""How a chunk stands while it is under way, and the commit by which it counts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from staticjob.generating.outcome import Outcome
from staticjob.ledger import Ledger
from staticjob.records.rates import Ceilings
from staticjob.records.record import Record
from staticjob.records.status import RowError, Status


class Progress(Record):
    """`chunks/<id>/progress.json`: rewritten as the chunk goes; the one source of live progress."""

    chunk: str
    state: Literal["running", "done", "failed", "stopped"]
    worker: str
    batches_done: int
    batches_total: int
    rows_done: int
    kept_batches: int = Field(default=0, description="of batches_done: kept from an earlier try")
    tails: int = Field(default=0, description="rows for vLLM, as far as they are known")
    tails_done: int = 0
    active_rows: int = Field(default=0, description="rows not ended of the batches that decode now")
    decoding_rows: int = Field(default=0, description="all rows of those batches")
    ledger: Ledger
    seconds: float
    heartbeat: str = Field(description="UTC time, ISO 8601")
    reason: str = ""


class Block(Record):
    """One record batch of a result object: rows from (file, row) on, in order."""

    file: int
    row: int
    rows: int
    offset: int = Field(description="first byte of the batch's message in the result object")
    bytes: int = Field(description="bytes of the message")


class Commit(Record):
    """`chunks/<id>/commit.json`, put if absent after the result: the chunk counts when it exists."""

    chunk: str
    result: str = Field(description="name of the result object beside the commit marker")
    size: int
    rows: int
    blocks: tuple[Block, ...]
    statuses: dict[Status, int]
    first_errors: tuple[RowError, ...] = ()
    ledger: Ledger
    length: int
    batch: int
    batches: int
    kept_batches: int = Field(description="batches kept from an earlier try")
    seconds: float = Field(description="that the last try spent on the chunk, engine starts excluded")
    compute_seconds: float = Field(description="sum over this try's batches of time in the engine")
    start_seconds: float = Field(description="engine start, charged to the first chunk of a process")
    peak_bytes: int | None
    device: str
    dtype: str
    ceilings: Ceilings | None = Field(default=None, description="of the worker's device, if it measured them")
    worker: str
    versions: dict[str, str]
    generation: Outcome | None = Field(default=None, description="of a chunk that generates")
    finished: str

    @property
    def useful_tokens(self) -> int:
        """Tokens of prompts and texts that the chunk computed, by either engine; none counts twice."""
        if self.generation is None:
            return self.ledger.useful
        vllm = self.generation.vllm
        return self.ledger.useful + vllm.prefilled - vllm.again + vllm.generated
