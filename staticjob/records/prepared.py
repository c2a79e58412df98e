"""What `prepare` pins: the resolved job, its input objects cut into splits, and its model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from staticjob.config.job import JobConfig
from staticjob.records.record import Record
from staticjob.storage.pinned import PinnedObject


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
