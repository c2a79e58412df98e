"""One type for many files' columns, or a clear refusal."""

from __future__ import annotations

from itertools import permutations

import pyarrow as pa
import pytest

from staticjob.dataset.schema import (
    Kind,
    decode_schema,
    encode_schema,
    join_kinds,
    kept_schema,
    kind_of,
    note,
    unify,
)
from staticjob.errors import DataError

STRING, INT, DOUBLE = pa.string(), pa.int64(), pa.float64()


def one(type_: pa.DataType, kind: Kind | None = None, file: str = "f") -> pa.Schema:
    return pa.schema([note(pa.field("x", type_), file, kind)])


@pytest.mark.parametrize(
    ("types", "common"),
    [
        ([pa.null(), INT], INT),
        ([STRING, pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), STRING)], STRING),
        ([pa.dictionary(pa.int8(), pa.large_string())], STRING),
        ([pa.binary(), pa.large_binary()], pa.binary()),
        ([pa.int32(), INT], INT),
        ([pa.uint32(), pa.int32()], INT),
        ([pa.float32(), DOUBLE], DOUBLE),
        ([pa.int32(), DOUBLE], DOUBLE),
        ([pa.timestamp("ms"), pa.timestamp("us")], pa.timestamp("us")),
        ([pa.decimal128(5, 2), pa.decimal128(10, 4)], pa.decimal128(10, 4)),
        ([pa.list_(pa.null()), pa.large_list(STRING)], pa.list_(STRING)),
        ([pa.list_(pa.dictionary(pa.int8(), STRING)), pa.list_(STRING)], pa.list_(STRING)),
    ],
)
def test_types_of_one_meaning_become_one_in_any_order(types: list[pa.DataType], common: pa.DataType) -> None:
    for order in permutations(types):
        assert unify([one(type_) for type_ in order]).field("x").type == common


def test_structs_take_the_union_of_their_fields() -> None:
    schemas = [one(pa.struct({"a": pa.large_string()})), one(pa.struct({"b": INT}))]
    assert unify(schemas).field("x").type == pa.struct({"a": STRING, "b": INT})


@pytest.mark.parametrize(
    "types",
    [
        (STRING, INT),
        (INT, DOUBLE),
        (INT, pa.uint64()),
        (pa.decimal128(20, 2), DOUBLE),
        (pa.bool_(), INT),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    ],
)
def test_types_that_would_lose_a_value_are_refused_by_name(types: tuple[pa.DataType, pa.DataType]) -> None:
    for first, second in permutations(types):
        with pytest.raises(
            DataError, match=r"column 'x': .* in a\.parquet and .* in b\.parquet have no common"
        ):
            unify([one(first, file="a.parquet"), one(second, file="b.parquet")])


@pytest.mark.parametrize(
    ("typed", "kind", "untyped", "common"),
    [
        (INT, Kind.TEXT, STRING, STRING),  # a CSV column beside a Parquet column of ids
        (STRING, Kind.INT, INT, STRING),
        (DOUBLE, Kind.INT53, INT, DOUBLE),
        (DOUBLE, Kind.INT, INT, None),
        (STRING, Kind.FLOAT, DOUBLE, None),
        (INT, Kind.ABSENT, pa.null(), INT),
        (pa.int32(), Kind.INT53, INT, INT),
    ],
)
def test_columns_of_untyped_formats_bend_where_no_digit_is_lost(
    typed: pa.DataType, kind: Kind, untyped: pa.DataType, common: pa.DataType | None
) -> None:
    for pair in permutations([one(typed), one(untyped, kind)]):
        if common is None:
            with pytest.raises(DataError):
                unify(list(pair))
        else:
            assert unify(list(pair)).field("x").type == common


def test_ids_of_two_widths_beside_a_csv_column_become_text_in_any_order() -> None:
    for order in permutations([one(pa.int32()), one(INT), one(STRING, Kind.TEXT), one(pa.null(), Kind.NULL)]):
        assert unify(order).field("x").type == STRING


def test_a_column_no_row_has_is_refused_where_it_is_named_and_no_part_of_all() -> None:
    absent = [one(pa.null(), Kind.ABSENT)]
    with pytest.raises(DataError, match="no row of the input has the key 'x'"):
        kept_schema(absent)
    assert kept_schema(absent, every=True) == pa.schema([])


def test_kinds_join_in_any_order_and_never_lose_a_digit() -> None:
    for a in Kind:
        assert join_kinds([a]) is a
        for b in Kind:
            assert join_kinds([a, b]) is join_kinds([b, a])
            for c in Kind:
                once = join_kinds([a, b, c])
                if {Kind.INT, Kind.FLOAT} <= {a, b, c}:
                    assert once is Kind.TEXT
                assert join_kinds([join_kinds([a, b]), c]) in (once, Kind.TEXT)


def test_notes_survive_storage_and_schemas_without_columns_are_fine() -> None:
    assert kind_of(decode_schema(encode_schema(one(INT, Kind.INT))).field("x")) is Kind.INT
    assert unify([]) == unify([pa.schema([])]) == pa.schema([])
