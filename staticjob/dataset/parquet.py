"""Rows of Parquet files, by row group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from staticjob import storage
from staticjob.records.prepared import FileSlice, InputFile

BATCH_BYTES = 32 * 1024 * 1024


def open_parquet(file: InputFile) -> pq.ParquetFile:
    """The file with its footer read; only the columns asked for are fetched, one row group at a time."""
    return pq.ParquetFile(storage.open_pinned(file.object), pre_buffer=True, page_checksum_verification=True)


def read_tables(
    file: InputFile,
    piece: FileSlice,
    choose: Callable[[Sequence[str]], Sequence[str]],
    batch_rows: int,
) -> Iterator[pa.Table]:
    """Tables of at most `batch_rows` rows and about BATCH_BYTES; one without rows where there are none.

    choose: given the file's columns, names those to read.
    """
    with open_parquet(file) as parquet:
        schema = parquet.schema_arrow
        names = list(choose(schema.names))
        groups = range(*(piece.row_groups or (0, parquet.num_row_groups)))
        empty = True
        for group in groups:
            rows = _batch_rows(parquet.metadata.row_group(group), batch_rows)
            for batch in parquet.iter_batches(rows, row_groups=[group], columns=names):
                empty = False
                yield pa.Table.from_batches([batch]).select(names)
        if empty:
            yield pa.schema([schema.field(name) for name in names]).empty_table()


def _batch_rows(group: pq.RowGroupMetaData, most: int) -> int:
    """Rows of one batch: long documents come fewer at a time."""
    row_bytes = group.total_byte_size / max(1, group.num_rows)
    return max(1, min(most, int(BATCH_BYTES / max(1.0, row_bytes))))
