"""What is published: output files by merge group, and the manifest over all of them."""

from __future__ import annotations

from pydantic import Field

from staticjob.ledger import Ledger
from staticjob.records.rates import Forecast, Rates
from staticjob.records.record import Record
from staticjob.records.status import Status


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
