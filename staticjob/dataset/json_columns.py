"""JSON values, as the bytes that spell them, to Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from staticjob.dataset.schema import ARROW_TYPES, Kind, join_kinds

Cell = msgspec.Raw | None  # None: the row lacks the key, or is in error

EXACT = 2**53
INT64 = 2**63
_DIGITS = frozenset(b"-0123456789")
_text = msgspec.json.Decoder(str)
# The common columns in one call of the parser each.
_texts = msgspec.json.Decoder(list[str | None])
_integers = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=-INT64, le=INT64 - 1)] | None])


def infer_column(cells: Sequence[Cell]) -> tuple[pa.Array, Kind]:
    """The cells in the narrowest type that keeps every digit, and their kind."""
    texts = _decode_all(_texts, cells)
    if texts:
        return pa.array(texts, pa.string()), Kind.TEXT
    integers = _decode_all(_integers, cells)
    if integers:
        array = pa.array(integers, pa.int64())
        low, high = pc.min_max(array).as_py().values()
        return array, Kind.INT53 if low >= -EXACT and high <= EXACT else Kind.INT
    spelled = [None if cell is None else bytes(cell) for cell in cells]
    kind = join_kinds(Kind.ABSENT if cell is None else kind_of_value(cell) for cell in spelled)
    return pa.array([_READERS[kind](cell) for cell in spelled], ARROW_TYPES[kind]), kind


def text_column(cells: Sequence[Cell]) -> pa.Array:
    """The cells as text: strings as they are, anything else as its JSON spelling, null as null."""
    texts = _decode_all(_texts, cells)
    return pa.array(texts or [None if cell is None else _to_text(bytes(cell)) for cell in cells], pa.string())


def drop_other_values(cells: list[Cell]) -> list[int]:
    """Make each cell that is neither string nor null absent; returns which."""
    if _decode_all(_texts, cells):
        return []
    dropped = []
    for i, cell in enumerate(cells):
        if cell is not None and bytes(cell) != b"null" and not bytes(cell).startswith(b'"'):
            cells[i] = None
            dropped.append(i)
    return dropped


def kind_of_value(value: bytes) -> Kind:
    """The kind of one JSON value, by how it is spelled."""
    first = value[:1]
    if first in b'"{[':
        return Kind.TEXT
    if value == b"null":
        return Kind.NULL
    if first in b"tf":
        return Kind.BOOL
    if not _DIGITS.issuperset(value):
        return Kind.FLOAT
    number = int(value) if len(value) <= 20 else INT64
    if abs(number) <= EXACT:
        return Kind.INT53
    return Kind.INT if -INT64 <= number < INT64 else Kind.TEXT


def _decode_all(decoder: Any, cells: Sequence[Cell]) -> list[Any] | None:
    """The cells' values if all are of the decoder's type or null, and one is not null; else None."""
    joined = b",".join([b"null" if cell is None else cell for cell in cells])
    try:
        values: list[Any] = decoder.decode(b"[" + joined + b"]")
    except msgspec.DecodeError:  # another type, or NaN
        return None
    return values if values.count(None) < len(values) else None


def _to_text(value: bytes) -> str | None:
    if value == b"null":
        return None
    return _text.decode(value) if value.startswith(b'"') else value.decode()


def _reader(parse: Callable[[bytes], object]) -> Callable[[bytes | None], object]:
    return lambda cell: None if cell is None or cell == b"null" else parse(cell)


_READERS: dict[Kind, Callable[[bytes | None], object]] = {
    Kind.ABSENT: _reader(bytes),
    Kind.NULL: _reader(bytes),
    Kind.BOOL: _reader(lambda cell: cell == b"true"),
    Kind.INT53: _reader(int),
    Kind.INT: _reader(int),
    Kind.FLOAT: _reader(float),
    Kind.TEXT: _reader(_to_text),
}
