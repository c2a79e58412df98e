"""Arrow columns as Python text, and the cells that are not text."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
from pyarrow import types

from staticjob.dataset.schema import plain_type
from staticjob.errors import DataError

SURROGATES = re.compile("[\ud800-\udfff]")
REPLACEMENT = "\ufffd"


def is_text(type_: pa.DataType) -> bool:
    """Strings in any encoding, bytes that may be UTF-8, and columns of nothing but nulls."""
    plain = plain_type(type_)
    return bool(types.is_string(plain) or types.is_binary(plain) or types.is_null(plain))


def text_values(column: pa.ChunkedArray, where: str) -> list[str | None]:
    """The column's values as Python strings; half characters (lone surrogates) become U+FFFD.

    Raises DataError naming `where` when the column holds something other than text.
    """
    if not is_text(column.type):
        raise DataError(f"{where}: the text column holds {column.type}; expected text")
    decoded, _ = decode_column(column)
    values: list[str | None] = decoded.to_pylist()
    return values


def structured_values(column: pa.ChunkedArray) -> tuple[list[Any], dict[int, str]]:
    """Lists and objects as Python values, from Arrow's types or from JSON text; and {row: what is wrong}."""
    if not is_text(column.type):
        return _nested_values(column)
    decoded, problems = decode_column(column)
    values: list[Any] = decoded.to_pylist()
    for row, value in enumerate(values):
        try:
            values[row] = None if value is None else _parse(value)
        except ValueError as error:
            values[row] = None
            problems[row] = f"is not JSON ({error})"
        except RecursionError:
            values[row] = None
            problems[row] = "is nested too deeply"
    return values, problems


def _nested_values(column: pa.ChunkedArray) -> tuple[list[Any], dict[int, str]]:
    """As `structured_values`, of Arrow's own lists and objects: text in them may be no UTF-8."""
    try:
        return column.to_pylist(), {}
    except UnicodeDecodeError:
        values: list[Any] = []
    problems: dict[int, str] = {}
    for row, cell in enumerate(column):
        try:
            values.append(cell.as_py())
        except UnicodeDecodeError as error:
            values.append(None)
            problems[row] = f"is {not_utf8(error)}"
    return values, problems


def _parse(text: str) -> Any:
    """The value that JSON text spells; half characters (lone surrogates) in it become U+FFFD."""
    value = json.loads(text)
    if "\\u" not in text:
        return value
    return json.loads(SURROGATES.sub(REPLACEMENT, json.dumps(value, ensure_ascii=False)))


def decode_column(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, dict[int, str]]:
    """A text column as valid `string`, and the cells that are not UTF-8: {row: why}. Those become null."""
    data = column.cast(plain_type(column.type)).cast(pa.binary())
    try:
        return data.cast(pa.string()), {}  # checks every byte, unlike a cast from string to string
    except pa.ArrowInvalid:
        return _decode_cells(data)


def _decode_cells(data: pa.ChunkedArray) -> tuple[pa.ChunkedArray, dict[int, str]]:
    values: list[str | None] = []
    problems: dict[int, str] = {}
    for row, cell in enumerate(data.to_pylist()):
        try:
            values.append(None if cell is None else decode(cell))
        except UnicodeDecodeError as error:
            values.append(None)
            problems[row] = not_utf8(error)
    return pa.chunked_array([pa.array(values, pa.string())]), problems


def decode(data: bytes) -> str:
    """UTF-8 to text; half characters become U+FFFD, other bytes raise UnicodeDecodeError."""
    return SURROGATES.sub(REPLACEMENT, data.decode("utf-8", "surrogatepass"))


def not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 (byte 0x{error.object[error.start]:02x} at offset {error.start})"
