"""One output file: kept columns of the input and results side by side, as Parquet.

The bytes depend on the rows alone: no time, host or run enters, so a resumed run and an
undisturbed one publish equal objects.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from staticjob import storage
from staticjob.errors import ConfigError, DataError
from staticjob.merging.spool import Spool
from staticjob.records.prepared import InputFile
from staticjob.records.status import WITH_RESULT, Status

# A row group of the output: all that is in memory of the data at one time.
ROW_GROUP_BYTES = 64 * 2**20
ROW_GROUP_ROWS = 2**20
OUTCOME = pa.schema(
    [
        pa.field("status", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("n_tokens", pa.int32()),
        pa.field("engine", pa.string()),
        pa.field("rung", pa.int32()),
    ]
)


@dataclass
class Tally:
    """Counts over published rows."""

    rows: int = 0
    n_tokens: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    engines: Counter[str] = field(default_factory=Counter)
    items: Counter[Status] = field(default_factory=Counter)

    def add(self, table: pa.Table) -> None:
        """Count the rows of one output row group."""
        grouped = table.select(["status", "engine", "n_tokens"]).group_by(["status", "engine"])
        for count in grouped.aggregate([("n_tokens", "sum"), ([], "count_all")]).to_pylist():
            self.rows += count["count_all"]
            self.statuses[count["status"]] += count["count_all"]
            if count["status"] in WITH_RESULT:
                self.n_tokens += count["n_tokens_sum"]
                self.engines[count["engine"]] += count["count_all"]

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.rows + other.rows,
            self.n_tokens + other.n_tokens,
            self.statuses + other.statuses,
            self.engines + other.engines,
            self.items + other.items,
        )

    def by_status(self) -> dict[Status, int]:
        return {status: self.statuses[status.value] for status in Status if self.statuses[status.value]}


def output_schema(kept: pa.Schema, heads: Sequence[pa.Field]) -> pa.Schema:
    """Columns of every output file. Raises ConfigError when a kept column has a result's name."""
    own = {f.name for f in [*heads, *OUTCOME]}
    taken = [name for name in kept.names if name in own]
    if taken:
        raise ConfigError(
            f"input.keep: column {taken[0]!r} has the name of a result column "
            f"({', '.join(sorted(own))}); name the columns to keep without it, or rename it in the input"
        )
    return pa.schema([*kept, *heads, *OUTCOME])


class Rows(Protocol):
    """Where the rows of one output file come from."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's results, on average."""

    def read(self, start: int, stop: int) -> dict[str, pa.Array]:
        """Result columns of rows start..stop of the file."""


@dataclass(frozen=True)
class SpoolRows:
    """Rows that lie in a spool one by one, from position `first` on."""

    spool: Spool
    first: int

    @property
    def row_bytes(self) -> int:
        return self.spool.row_bytes

    def read(self, start: int, stop: int) -> dict[str, pa.Array]:
        return self.spool.read(self.first + start, self.first + stop)


@dataclass(frozen=True)
class ParquetLayout:
    """How the columns of a schema are written: vectors split by byte, the others by dictionary."""

    schema: pa.Schema
    options: dict[str, Any]

    @classmethod
    def of(cls, schema: pa.Schema, heads: Sequence[pa.Field], compression: str) -> ParquetLayout:
        empty = io.BytesIO()
        pq.write_table(schema.empty_table(), empty)
        described = pq.ParquetFile(empty).schema
        leaves = [described.column(i).path for i in range(len(described))]
        # Numbers of a vector repeat neither as values nor as ranges: a dictionary and statistics
        # would only cost. Their bytes split by significance compress by about a sixth.
        split = [f"{f.name}.list.element" for f in heads if pa.types.is_fixed_size_list(f.type)]
        others = [leaf for leaf in leaves if leaf not in split]
        options = {
            "compression": compression,
            "use_dictionary": others,
            "write_statistics": others,
            "column_encoding": dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
        }
        return cls(schema, options)


def write_file(
    uri: str,
    file: InputFile,
    kept: Iterator[pa.Table] | None,
    *,
    rows: Rows,
    count: int,
    layout: ParquetLayout,
    before_publish: Callable[[], None],
) -> Tally:
    """Write the output of one input file of `count` rows.

    kept: kept columns in row order, in batches; None when the job keeps none.
    before_publish: called when all is written and nothing visible yet; its exception aborts.
    Raises DataError when the input has another number of rows than were planned.
    """
    tally = Tally()
    with storage.writer(uri) as sink:
        with pq.ParquetWriter(sink, layout.schema, **layout.options) as parquet:
            at = 0
            for n, columns in _row_groups(kept, count, rows.row_bytes):
                if at + n > count:
                    raise changed(file, count, "more")
                values = {**columns, **rows.read(at, at + n)}
                table = pa.table([values[name] for name in layout.schema.names], schema=layout.schema)
                parquet.write_table(table, row_group_size=n)
                tally.add(table)
                at += n
        if at != count:
            raise changed(file, count, str(at))
        before_publish()
    return tally


def _row_groups(
    kept: Iterator[pa.Table] | None, rows: int, row_bytes: int
) -> Iterator[tuple[int, dict[str, pa.ChunkedArray]]]:
    """(rows, kept columns) per output row group, each of about ROW_GROUP_BYTES with its results."""
    if kept is None:
        step = max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // row_bytes))
        for begin in range(0, rows, step):
            yield min(step, rows - begin), {}
        return
    waiting: list[pa.Table] = []
    held = held_rows = 0
    for table in kept:
        size = table.nbytes + table.num_rows * row_bytes
        if waiting and (held + size > ROW_GROUP_BYTES or held_rows + table.num_rows > ROW_GROUP_ROWS):
            yield held_rows, _columns(waiting)
            waiting, held, held_rows = [], 0, 0
        if table.num_rows:
            waiting.append(table)
            held += size
            held_rows += table.num_rows
    if waiting:
        yield held_rows, _columns(waiting)


def _columns(tables: Iterable[pa.Table]) -> dict[str, pa.ChunkedArray]:
    table = pa.concat_tables(tables)
    return dict(zip(table.schema.names, table.columns, strict=True))


def changed(file: InputFile, planned: int, found: str) -> DataError:
    return DataError(
        f"{file.object.uri}: the input changed: {found} rows where {planned} were planned; "
        "run the job again to plan the input as it is now"
    )
