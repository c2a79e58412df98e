"""Planned rows with their tokens, and what was published of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from staticjob import storage
from staticjob.errors import DataError
from staticjob.layout import Output, Work
from staticjob.records.plan import Chunk
from staticjob.records.prepared import Prepared
from staticjob.records.status import WITH_RESULT
from staticjob.running.parts import read_ids, read_rows
from staticjob.running.results import vectors


@dataclass(frozen=True)
class Sample:
    """One planned row with its tokens, and its published result once that is read."""

    file: int
    row: int
    item: int
    boundary: int
    ids: NDArray[np.int32]
    published: dict[str, NDArray[Any]] = field(default_factory=dict)


def read_samples(work: Work, chunk: Chunk, at: NDArray[np.int64]) -> Iterator[Sample]:
    """The chunk's rows with these numbers: all row records of the spans, the ids of these alone."""
    first = 0
    for span in chunk.spans:
        n = span.stop - span.start
        own = at[(at >= first) & (at < first + n)] - first
        first += n
        if not len(own):
            continue
        records = read_rows(work, span)
        ends = span.token_start + np.cumsum(records["length"], dtype=np.int64)
        for i in own:
            record = records[i]
            length = int(record["length"])
            ids = read_ids(work, span.part, int(ends[i]) - length, length)
            file, row, item, boundary = (int(record[name]) for name in ("file", "row", "item", "boundary"))
            yield Sample(file, row, item, boundary, ids)


def read_published(prepared: Prepared, samples: Sequence[Sample], heads: Sequence[str]) -> None:
    """Fill in the published head columns of every row that the static engine answered."""
    by_file: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_file[sample.file].append(sample)
    for file, own in by_file.items():
        with open_published(prepared, file) as (uri, parquet):
            _read_groups(uri, parquet, sorted(own, key=lambda s: s.row), heads, prepared.config.lists)


@contextmanager
def open_published(prepared: Prepared, file: int) -> Iterator[tuple[str, pq.ParquetFile]]:
    """The output of input file number `file`: its URI and contents. DataError where there is none yet."""
    uri = Output(prepared.config.output.uri).file(prepared.files[file].output)
    pin = storage.head(uri)
    if pin is None:
        raise DataError(f"{uri}: not published yet; verify compares with a merged output")
    with pq.ParquetFile(pa.PythonFile(storage.open_pinned(pin), "r")) as parquet:
        yield uri, parquet


def _read_groups(
    uri: str, parquet: pq.ParquetFile, samples: Sequence[Sample], heads: Sequence[str], lists: bool
) -> None:
    """Read the row groups that hold `samples` (ascending rows), head columns and outcome alone.

    lists: a head's results are the elements of a column of lists, named with an s.
    """
    columns = {name: f"{name}s" if lists else name for name in heads}
    metadata = parquet.metadata
    ends = np.cumsum([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
    if samples[-1].row >= metadata.num_rows:
        raise DataError(f"{uri}: {metadata.num_rows} rows, but the plan has row {samples[-1].row}")
    by_group: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_group[int(np.searchsorted(ends, sample.row, side="right"))].append(sample)
    for group, own in by_group.items():
        table = parquet.read_row_group(
            group, columns=[*columns.values(), "status", "engine"]
        ).combine_chunks()
        start = int(ends[group]) - metadata.row_group(group).num_rows
        values = {name: _values(table[column].chunk(0)) for name, column in columns.items()}
        for sample in own:
            i = sample.row - start
            if table["status"][i].as_py() in WITH_RESULT and table["engine"][i].as_py() == "static":
                found = {name: values[name][i] for name in heads}
                sample.published.update({n: v[sample.item] for n, v in found.items()} if lists else found)


def _values(column: pa.Array) -> NDArray[Any]:
    """Results [n], or [n, D] where each is D numbers."""
    if pa.types.is_fixed_size_list(column.type):
        return vectors(column)
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        column = column.fill_null(pa.scalar(0).cast(column.type))  # nulls would make the numbers floats
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values
