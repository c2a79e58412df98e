"""One schema for the kept columns of many files: equal meanings get one type, lossy mixtures are refused.

Fields carry two notes as metadata until `kept_schema` drops them: the file they come from, and
their *kind* where the format has no types of its own (JSON Lines, CSV). The kind says more than
the Arrow type: whether a JSON integer column is exact as a float, and whether text is only the
spelling of a value.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import reduce

import pyarrow as pa
from pyarrow import types

from staticjob.errors import DataError

KIND = b"staticjob.kind"
FILE = b"staticjob.file"


class Kind(StrEnum):
    """What the values of an untyped column are; JSON Lines has all of them, CSV only text."""

    ABSENT = "absent"  # no row has the key
    NULL = "null"
    BOOL = "bool"
    INT53 = "int53"  # integers a float64 holds exactly
    INT = "int"
    FLOAT = "float"
    TEXT = "text"


ARROW_TYPES = {
    Kind.ABSENT: pa.null(),
    Kind.NULL: pa.null(),
    Kind.BOOL: pa.bool_(),
    Kind.INT53: pa.int64(),
    Kind.INT: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.TEXT: pa.string(),
}


def join_kinds(kinds: Iterable[Kind]) -> Kind:
    """The kind that holds values of all `kinds` without losing a digit; text holds everything."""
    left = set(kinds)
    for weakest in (Kind.ABSENT, Kind.NULL):
        if left <= {weakest}:
            return weakest
        left.discard(weakest)
    if len(left) == 1:
        return left.pop()
    if left == {Kind.INT53, Kind.INT}:
        return Kind.INT
    if left == {Kind.INT53, Kind.FLOAT}:
        return Kind.FLOAT
    return Kind.TEXT


def note(field: pa.Field, file: str, kind: Kind | None) -> pa.Field:
    """The field with its notes and nothing else as metadata."""
    notes = {FILE: file.encode()} | ({KIND: kind.value.encode()} if kind else {})
    return pa.field(field.name, field.type, metadata=notes)


def kind_of(field: pa.Field) -> Kind | None:
    value = (field.metadata or {}).get(KIND)
    return Kind(value.decode()) if value else None


def file_of(field: pa.Field) -> str:
    value: bytes = (field.metadata or {}).get(FILE, b"one file")
    return value.decode()


def unify(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """All columns of all schemas, each in a type that holds every file's values exactly.

    Raises DataError naming the column, both types and both files where there is no such type.
    """
    columns: dict[str, list[pa.Field]] = {}
    for schema in schemas:
        for field in schema:
            field = pa.field(field.name, plain_type(field.type), metadata=field.metadata)
            columns.setdefault(field.name, []).append(field)
    return pa.schema([_unify_column(fields) for fields in columns.values()])


def kept_schema(schemas: Sequence[pa.Schema], every: bool = False) -> pa.Schema:
    """The schema of the kept columns in the output: `unify` without notes.

    every: whatever columns there are is kept; else raises DataError for one that no row of any file has.
    """
    fields = list(unify(schemas))
    if every:
        fields = [field for field in fields if kind_of(field) is not Kind.ABSENT]
    for field in fields:
        if kind_of(field) is Kind.ABSENT:
            raise DataError(
                f"input.keep: no row of the input has the key {field.name!r}; correct or remove it"
            )
    return pa.schema([pa.field(field.name, field.type) for field in fields])


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type without encodings: dictionary, large, view and run-end variants become what they stand for."""
    if isinstance(type_, pa.BaseExtensionType):
        return plain_type(type_.storage_type)
    if types.is_dictionary(type_) or types.is_run_end_encoded(type_):
        return plain_type(type_.value_type)
    if types.is_large_string(type_) or types.is_string_view(type_):
        return pa.string()
    if types.is_large_binary(type_) or types.is_binary_view(type_):
        return pa.binary()
    if types.is_fixed_size_list(type_):
        return pa.list_(plain_type(type_.value_type), type_.list_size)
    if types.is_list(type_) or types.is_large_list(type_):
        return pa.list_(plain_type(type_.value_type))
    if types.is_struct(type_):
        return pa.struct([pa.field(f.name, plain_type(f.type)) for f in type_])
    if types.is_map(type_):
        return pa.map_(plain_type(type_.key_type), plain_type(type_.item_type))
    return type_


def _unify_column(fields: Sequence[pa.Field]) -> pa.Field:
    """One field for a column of many files, whatever their order: text that only spells a value must
    meet the type that all typed files agree on, not that of the first."""
    typed = [field for field in fields if kind_of(field) is None]
    untyped = [field for field in fields if kind_of(field) is not None]
    return reduce(_unify_fields, [reduce(_unify_fields, group) for group in (typed, untyped) if group])


def _unify_fields(first: pa.Field, second: pa.Field) -> pa.Field:
    kinds = kind_of(first), kind_of(second)
    if first.type == second.type and kinds[0] == kinds[1]:
        return first
    if kinds[0] and kinds[1]:
        kind = join_kinds((kinds[0], kinds[1]))
        return note(pa.field(first.name, ARROW_TYPES[kind]), file_of(first), kind)
    type_ = _common_type(first, second)
    if type_ is None:
        raise DataError(
            f"column {first.name!r}: {first.type} in {file_of(first)} and {second.type} in {file_of(second)} "
            "have no common type; convert one of them, or leave the column out of input.keep"
        )
    origin = second if second.type == type_ != first.type else first
    return note(pa.field(first.name, type_), file_of(origin), None)


def _common_type(first: pa.Field, second: pa.Field) -> pa.DataType | None:
    """A type for a typed column and another column, of which at most one has a kind."""
    pair = (first, second)
    if first.type == second.type:
        return first.type
    if any(types.is_string(field.type) for field in pair):
        other = second.type if types.is_string(first.type) else first.type
        spelled = any(kind_of(field) for field in pair)  # one side's text is only a spelling
        if spelled and types.is_integer(other):
            return pa.string()
    if _loses_digits(first, second) or _loses_digits(second, first):
        return None
    try:
        sides = [pa.schema([pa.field("x", field.type)]) for field in pair]
        merged = pa.unify_schemas(sides, promote_options="permissive")
    except pa.ArrowException:
        return None
    return plain_type(merged.field("x").type)


def _loses_digits(field: pa.Field, other: pa.Field) -> bool:
    """Arrow would unify these, but not every value survives it."""
    if types.is_uint64(field.type):
        return bool(types.is_signed_integer(other.type) or types.is_floating(other.type))
    if types.is_int64(field.type):
        return types.is_floating(other.type) and kind_of(field) is not Kind.INT53
    return bool(types.is_decimal(field.type) and types.is_floating(other.type))
