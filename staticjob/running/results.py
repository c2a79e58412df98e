"""Result objects: what a chunk computed and what tokenize answered, as Arrow IPC files.

A result object is an ordinary Arrow IPC file without dictionaries, so every record batch is a
message that stands alone. The commit lists where each message lies and which row it begins
with; a reader fetches just the blocks it needs, neighbours in one ranged request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from staticjob import storage
from staticjob.errors import DataError
from staticjob.records.commit import Block
from staticjob.records.status import Status

ANSWERED_SCHEMA = pa.schema(
    [
        pa.field("file", pa.int32()),
        pa.field("row", pa.int64()),
        pa.field("item", pa.int32()),
        pa.field("status", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("n_tokens", pa.int32()),
    ]
)
BLOCK_ROWS = 8192
# A merge group rarely begins where a block does: small blocks keep what is fetched in vain small.
BLOCK_BYTES = 2**20


def result_schema(heads: Sequence[pa.Field]) -> pa.Schema:
    """Columns of a result object: identity, outcome, rung, engine, then the head's own."""
    return pa.schema([*ANSWERED_SCHEMA, ("rung", pa.int32()), ("engine", pa.string()), *heads])


def batch_table(
    rows: NDArray[np.void],
    length: int,
    engine: str,
    columns: Mapping[str, NDArray[np.generic]],
    reasons: Mapping[int, str],
) -> pa.Table:
    """Results of `rows` (`ROW_DTYPE`, [n]) run at rung `length`.

    columns: head columns, first axis n; a second axis D makes a fixed-size list; objects are strings or
        arrays, which make lists of any length.
    reasons: why a row, by its index in `rows`, has no result; it becomes a row error.
    """
    n = len(rows)
    failed = np.zeros(n, dtype=bool)
    failed[list(reasons)] = True
    statuses = np.where(rows["truncated"] != 0, Status.TRUNCATED.value, Status.OK.value).astype(object)
    statuses[failed] = Status.ERROR.value
    notes = [
        reasons.get(i, f"cut to {row['length']} tokens" if row["truncated"] else None)
        for i, row in enumerate(rows)
    ]
    arrays = {
        "file": pa.array(rows["file"]),
        "row": pa.array(rows["row"]),
        "item": pa.array(rows["item"]),
        "status": pa.array(statuses, pa.string()),
        "reason": pa.array(notes, pa.string()),
        "n_tokens": pa.array(rows["length"]),
        "rung": pa.array(np.full(n, length, dtype=np.int32)),
        "engine": pa.array([engine] * n, pa.string()),
    }
    return pa.table(arrays | {name: _head_array(values, failed) for name, values in columns.items()})


def _head_array(values: NDArray[np.generic], failed: NDArray[np.bool_]) -> pa.Array:
    if values.ndim == 1:
        if values.dtype != object:
            return pa.array(values, mask=failed)
        lists = isinstance(values[0], np.ndarray)
        kind = pa.list_(pa.from_numpy_dtype(values[0].dtype)) if lists else pa.string()
        return pa.array(values, kind, mask=failed)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=pa.array(failed))


def row_bytes(heads: Sequence[pa.Field], cap: int = 0) -> int:
    """About the bytes of one row's results; text and lists are taken to hold `cap` tokens."""
    return sum(_width(field.type, cap) for field in heads)


def _width(kind: pa.DataType, cap: int) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type, cap)
    return int(kind.bit_width) // 8 if pa.types.is_primitive(kind) else 4 * max(cap, 8)


def vectors(array: pa.FixedSizeListArray) -> NDArray[np.generic]:
    """The values [n, D] of a fixed-size list, those beneath nulls too (whatever they are)."""
    size = array.type.list_size
    flat = array.values.slice(array.offset * size, len(array) * size)
    values: NDArray[np.generic] = flat.to_numpy(zero_copy_only=False).reshape(len(array), size)
    return values


def sort_rows(table: pa.Table) -> pa.Table:
    """The table sorted by (file, row, item), its columns in one piece each."""
    table = table.combine_chunks()
    order = np.lexsort([table[name].to_numpy() for name in ("item", "row", "file")])
    return pa.table([_take(column, order) for column in table.columns], schema=table.schema)


def _take(column: pa.ChunkedArray, order: NDArray[np.intp]) -> pa.Array | pa.ChunkedArray:
    if not pa.types.is_fixed_size_list(column.type) or not column.num_chunks:
        return column.take(pa.array(order))
    # pyarrow gathers fixed-size lists value by value, about seven times slower than numpy.
    array = column.chunk(0)
    nulls = array.is_null().to_numpy(zero_copy_only=False)[order]
    values = pa.array(vectors(array)[order].reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, type=column.type, mask=pa.array(nulls))


def write_result(uri: str, table: pa.Table) -> tuple[int, tuple[Block, ...]]:
    """Write rows sorted by (file, row) in blocks; returns the object's size and its blocks."""
    rows = table.num_rows
    per_block = max(1, min(BLOCK_ROWS, BLOCK_BYTES * rows // max(1, table.nbytes)))
    blocks = []
    with storage.writer(uri) as sink, pa.ipc.new_file(sink, table.schema) as ipc:
        for batch in table.combine_chunks().to_batches(max_chunksize=per_block):
            ipc.write_batch(batch)
            size = pa.ipc.get_record_batch_size(batch)
            blocks.append(
                Block(
                    file=batch["file"][0].as_py(),
                    row=batch["row"][0].as_py(),
                    rows=batch.num_rows,
                    offset=sink.tell() - size,
                    bytes=size,
                )
            )
        ipc.close()
        total = sink.tell()
    return total, tuple(blocks)


def read_result(uri: str, start: int, length: int) -> bytes:
    """`length` bytes of a result object from `start` on; DataError when it is gone or ends before."""
    try:
        data = storage.read_range(uri, start, length)
    except DataError as error:
        raise DataError(f"{error}; delete the chunk's folder and run it again") from None
    if len(data) != length:
        raise DataError(
            f"{uri}: damaged, ends before byte {start + length}; delete the chunk's folder and run it again"
        )
    return data


def read_blocks(uri: str, blocks: Sequence[Block], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Read neighbouring blocks of a result object with one ranged request.

    Raises DataError when the object is shorter than its commit says or holds something else.
    """
    start = blocks[0].offset
    length = blocks[-1].offset + blocks[-1].bytes - start
    data = pa.py_buffer(read_result(uri, start, length))
    batches = []
    for block in blocks:
        try:
            message = pa.ipc.read_message(data.slice(block.offset - start, block.bytes))
            batch = pa.ipc.read_record_batch(message, schema)
        except (pa.ArrowInvalid, EOFError, OSError) as error:
            raise DataError(
                f"{uri}: damaged at byte {block.offset} ({error}); delete the chunk's folder and run it again"
            ) from None
        if batch.num_rows != block.rows:
            raise DataError(
                f"{uri}: {batch.num_rows} rows at byte {block.offset} where the commit names {block.rows}; "
                "delete the chunk's folder and run it again"
            )
        batches.append(batch)
    return batches


def to_ipc(table: pa.Table) -> bytes:
    """A table as one Arrow IPC file, in record batches of at most BLOCK_ROWS."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as ipc:
        ipc.write_table(table, max_chunksize=BLOCK_ROWS)
    return bytes(sink.getvalue())


def from_ipc(data: bytes) -> pa.Table:
    """The table of an Arrow IPC file."""
    return pa.ipc.open_file(data).read_all()


def stream_ipc(uri: str) -> Iterator[pa.RecordBatch]:
    """Record batches of an Arrow IPC object, one at a time; none when there is no such object."""
    pin = storage.head(uri)
    if pin is None:
        return
    try:
        with pa.ipc.open_file(pa.PythonFile(storage.open_pinned(pin), "r")) as ipc:
            for i in range(ipc.num_record_batches):
                yield ipc.get_batch(i)
    except pa.ArrowInvalid as error:
        raise DataError(f"{uri}: not an Arrow file ({error}); delete it and run its split again") from None
