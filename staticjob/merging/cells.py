"""Cells of any length as bytes, and back: text, and lists of any kind."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa


def is_variable(kind: pa.DataType) -> bool:
    """Whether a value of this type has no fixed width."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
    )


def to_bytes(array: pa.Array) -> pa.Array:
    """The values [n] as large_binary; nulls stay null. Lists of numbers are their memory, others JSON."""
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return array.cast(pa.large_string()).cast(pa.large_binary())
    if not _is_flat(array.type):
        return pa.array(
            [None if cell is None else json.dumps(cell).encode() for cell in array.to_pylist()],
            pa.large_binary(),
        )
    width = array.type.value_type.bit_width // 8
    valid = array.drop_null()
    offsets = np.asarray(valid.offsets, np.int64)
    flat = np.ascontiguousarray(valid.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy())
    ends = pa.py_buffer((offsets - offsets[0]) * width)
    cells = pa.Array.from_buffers(pa.large_binary(), len(valid), [None, ends, pa.py_buffer(flat)])
    if not array.null_count:
        return cells
    present = array.is_valid().to_numpy(zero_copy_only=False)
    return cells.take(pa.array(np.cumsum(present) - 1, mask=~present))


def from_bytes(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """What to_bytes was given, as `kind`."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return cells.cast(pa.large_string()).cast(kind)
    if not _is_flat(kind):
        return pa.array([None if cell is None else json.loads(cell) for cell in cells.to_pylist()], kind)
    width = kind.value_type.bit_width // 8
    cells = pa.concat_arrays([cells])  # from its first value on
    _, ends, data = cells.buffers()
    offsets = np.frombuffer(ends, np.int64)[cells.offset : cells.offset + len(cells) + 1]
    used = data.slice(offsets[0], offsets[-1] - offsets[0]) if data is not None else pa.py_buffer(b"")
    flat = pa.Array.from_buffers(kind.value_type, len(used) // width, [None, used])
    starts = pa.array((offsets - offsets[0]) // width, pa.int64())
    nulls = pa.array(cells.is_null().to_numpy(zero_copy_only=False))
    return pa.LargeListArray.from_arrays(starts, flat, mask=nulls).cast(kind)


def _is_flat(kind: pa.DataType) -> bool:
    """Lists of numbers that fill whole bytes."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(lists and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)))
