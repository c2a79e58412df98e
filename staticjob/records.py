"""The records that cross from one step to the next, each stored as one JSON object.

`prepare` writes a `Prepared`, `tokenize` one `SplitStats` per split, `plan` a `Plan`,
`chunk` a `Progress` and a `Commit` per chunk, `merge` a `MergeCommit` per group and
`finish` a `Manifest`. Everything bulky (token ids, results) lies in binary objects
beside them; see `layout.py` for where.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import numpy as np
from pydantic import Field

from staticjob.config import JobConfig
from staticjob.generating.outcome import Outcome
from staticjob.ledger import Ledger
from staticjob.record import Record
from staticjob.storage.pinned import PinnedObject


class Status(StrEnum):
    """The outcome of one row: a result (WITH_RESULT), or the reason why there is none."""

    OK = "ok"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    NULL = "null"
    TOO_LONG = "too_long"
    ERROR = "error"


WITH_RESULT = (Status.OK, Status.TRUNCATED)


class InputFile(Record):
    """One input object and the output object that mirrors it."""

    index: int
    path: str = Field(description="relative to input.uri, e.g. hour=01/p0.jsonl.gz")
    object: PinnedObject
    format: Literal["parquet", "jsonl", "csv"]
    compression: Literal["gzip", "zstd"] | None = None
    output: str = Field(description="relative to output.uri, e.g. hour=01/p0.parquet")


class FileSlice(Record):
    """A whole input file, or a range of a Parquet file's row groups."""

    file: int
    row_groups: tuple[int, int] | None = Field(default=None, description="first, last + 1")
    first_row: int = Field(default=0, description="row index in the file of the slice's first row")


class Split(Record):
    """The input of one tokenize task."""

    id: str
    slices: tuple[FileSlice, ...]


class ModelFiles(Record):
    """The model as pinned at prepare: where its files are and what they contain."""

    source: str = Field(description="model.path as the job gives it")
    files: tuple[PinnedObject, ...]
    digest: str = Field(description="sha256 over names and contents of all files")


class Prepared(Record):
    """`job.json`: the resolved job with everything it reads pinned."""

    staticjob: str
    config: JobConfig
    fingerprint: str
    files: tuple[InputFile, ...]
    splits: tuple[Split, ...]
    model: ModelFiles
    tokens: str | None = Field(default=None, description="folder of tokens that several jobs share")
    created: str


class Started(Record):
    """`started.json`: rewritten by every `prepare`, so a resumed run knows what it did not compute."""

    started: str


# One row of a part's `.rows` object; rows of a part are sorted by token count, longest first.
# `boundary` is the index of the first token of a second segment (a pair's second text, a
# continuation), or -1 where there is none; `item` numbers the elements of a row that is a list, each of
# which is run on its own, and is 0 for other rows.
ROW_DTYPE = np.dtype(
    [
        ("row", "<i8"),
        ("file", "<i4"),
        ("item", "<i4"),
        ("length", "<i4"),
        ("boundary", "<i4"),
        ("truncated", "<i4"),
    ]
)
# Elements per row of a split's `.items` object, in the order read: NO_LIST where the row is no list.
ITEMS_DTYPE = np.dtype("<i4")
NO_LIST = -1
# Token ids in a part's `.ids` object: the rows' ids one after another, in the order of `.rows`.
ID_DTYPE = np.dtype("<i4")


class PartStats(Record):
    """A sorted run of tokenized rows: how many rows it holds of each token count."""

    id: str
    rows: int
    tokens: int
    lengths: tuple[int, ...] = Field(description="distinct token counts, descending")
    counts: tuple[int, ...] = Field(description="rows per entry of lengths")


class SliceStats(Record):
    """What tokenize saw of one file slice."""

    file: int
    first_row: int
    rows: int
    items: int = Field(description="rows, where a row is a list its elements (at least one)")
    kept_schema: str = Field(description="base64 of the Arrow IPC schema of the kept columns")


# Row errors that a record names.
FIRST_ERRORS = 10


class RowError(Record):
    """One row that could not be answered with a result, for people to read."""

    file: str
    row: int = Field(description="row index in the file, from 0")
    line: int | None = Field(default=None, description="line in the file, from 1, where it has lines")
    status: Status
    reason: str

    @property
    def at(self) -> str:
        """The one number that finds the row: `line 9` of a text file, `row 3` of a table."""
        return f"row {self.row}" if self.line is None else f"line {self.line}"


class SplitStats(Record):
    """`tokens/<split>.json`, written last: the split is tokenized when it exists."""

    split: str
    parts: tuple[PartStats, ...]
    slices: tuple[SliceStats, ...]
    statuses: dict[Status, int] = Field(description="items per status")
    arrival_slots: int = Field(
        description="slots of the runnable rows in arrival order, 32 at a time, padded to the longest"
    )
    first_errors: tuple[RowError, ...] = ()
    seconds: float


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


class OutputFile(Record):
    """One published output object."""

    index: int
    path: str
    rows: int
    size: int
    version: str = Field(default="", description="as PinnedObject.version: another run's bytes are noticed")


class MergeCommit(Record):
    """`merge/<group>.json`: the group's output files are complete when it exists."""

    group: str
    files: tuple[OutputFile, ...]
    statuses: dict[Status, int] = Field(description="rows per status")
    items: dict[Status, int] = Field(
        default_factory=dict, description="elements per status of rows that are lists"
    )
    engines: dict[str, int] = Field(default_factory=dict, description="rows with a result per engine")
    n_tokens: int = Field(description="tokens of the rows with a result")
    seconds: float


class Manifest(Record):
    """`_manifest.json` beside the output files."""

    job: str
    task: str
    fingerprint: str
    rows: int
    statuses: dict[Status, int]
    ledger: Ledger
    files: tuple[OutputFile, ...]
    engines: dict[str, int] = Field(description="rows with a result per engine")
    forecast: Forecast
    seconds: float = Field(description="compute seconds over all chunks, engine starts included")
    cost: float | None
    rates: Rates | None = Field(description="as measured in this run, for the next forecast")
    versions: dict[str, str]
    command: str = Field(description="runs this job again")
    finished: str
