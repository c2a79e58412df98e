"""Cells of any length survive the way through the spool's heap."""

from __future__ import annotations

import pyarrow as pa
import pytest

from staticjob.merging.cells import from_bytes, to_bytes

COLUMNS = {
    "text": pa.array(["a", None, "", "ü👍"]),
    "integers": pa.array([[1, -2], None, [], [3]], pa.list_(pa.int32())),
    "floats": pa.array([[1.5, float("nan")], None, [], [-0.0]], pa.list_(pa.float32())),
    "texts": pa.array([["a", ""], None, [], ["ü", "b"]], pa.list_(pa.string())),
    "lists": pa.array([[[1, 2], [3]], None, [], [[], [4]]], pa.list_(pa.list_(pa.int32()))),
    "nulls": pa.array([None, None], pa.list_(pa.int32())),
    "nothing": pa.array([], pa.list_(pa.float32())),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_cells_come_back_as_they_were(name):
    column = COLUMNS[name]
    assert str(from_bytes(to_bytes(column), column.type)) == str(column)


@pytest.mark.parametrize("name", ["text", "integers", "floats", "texts", "lists"])
def test_cells_come_back_in_any_order_and_from_any_part(name):
    column = COLUMNS[name]
    order = pa.array([3, 0, 1])
    assert str(from_bytes(to_bytes(column).take(order), column.type)) == str(column.take(order))
    assert str(from_bytes(to_bytes(column.slice(1)), column.type)) == str(column.slice(1))
    assert str(from_bytes(to_bytes(column).slice(2), column.type)) == str(column.slice(2))
