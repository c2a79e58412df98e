"""Rows of an input file in batches, the same for every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import pyarrow as pa
from pyarrow import types

from staticjob.dataset import csv, json_columns, jsonl, parquet
from staticjob.dataset.csv_lines import RowLines
from staticjob.dataset.schema import Kind, note, plain_type
from staticjob.dataset.streams import reading
from staticjob.dataset.text import decode_column, is_text
from staticjob.errors import DataError
from staticjob.nearest import nearest
from staticjob.records.prepared import FileSlice, InputFile
from staticjob.units import plural

BATCH_ROWS = 4096
OTHER_SEPARATORS = frozenset(";\t|")


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of one file.

    table: [rows, columns]; a row in error has nulls. Fields carry the notes of `schema.py`.
    errors: why a row could not be read, by row index in the file.
    line_of: the line of the file, from 1, on which a row begins, by row index; asked in ascending order.
        None in Parquet, which has no lines.
    """

    first_row: int
    rows: int
    table: pa.Table
    errors: dict[int, str]
    line_of: Callable[[int], int | None] = lambda row: None


def read_slice(
    file: InputFile,
    piece: FileSlice,
    columns: Sequence[str] | None,
    batch_rows: int = BATCH_ROWS,
    *,
    text: Collection[str] = (),
) -> Iterator[RowBatch]:
    """All rows of the slice in order; one batch without rows, for its schema, where there are none.

    columns: names to read, in this order; None for all.
    text: columns a task reads as text. Values that are not text are row errors in JSON Lines;
        a column of another type is refused in Parquet.
    Raises DataError for a column that is missing (of JSON Lines: a text column no row has), an
    object that is corrupt, or one that changed since the plan.
    """
    wanted = None if columns is None else list(dict.fromkeys([*columns, *text]))
    with reading(file):
        if file.format == "jsonl":
            yield from _json_batches(file, wanted, batch_rows, text)
            return

        def choose(names: Sequence[str]) -> Sequence[str]:
            chosen = list(names) if wanted is None else wanted
            _check_columns(file, [*chosen, *text], names)
            return chosen

        if file.format == "csv":
            lines = RowLines(file)
            for rows in csv.read_rows(file, choose, batch_rows):
                table = _noted(rows.table, file, Kind.TEXT)
                yield RowBatch(rows.first_row, table.num_rows, table, rows.errors, lines.line_of)
            return
        first_row = piece.first_row
        for table in parquet.read_tables(file, piece, choose, batch_rows):
            yield _parquet_batch(file, first_row, table, text)
            first_row += table.num_rows


def read_kept(
    file: InputFile, keep: Literal["all"] | Sequence[str], schema: pa.Schema, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.Table]:
    """The file's kept columns in the types of `schema`, all rows in order; nothing if it has no columns.

    Cells of rows in error are null, and so are columns that, with `keep: all`, other files have.
    """
    if not schema.names:
        return
    with reading(file):
        if file.format == "jsonl":
            for lines in jsonl.read_lines(file, batch_rows):
                yield pa.Table.from_arrays(
                    [_typed_json(file, lines, field) for field in schema], schema=schema
                )
            return

        def choose(names: Sequence[str]) -> Sequence[str]:
            chosen = [name for name in schema.names if keep != "all" or name in names]
            _check_columns(file, chosen, names)
            return chosen

        tables = (
            (rows.table for rows in csv.read_rows(file, choose, batch_rows))
            if file.format == "csv"
            else parquet.read_tables(file, FileSlice(file=file.index), choose, batch_rows)
        )
        for table in tables:
            yield pa.Table.from_arrays([_typed(file, table, field) for field in schema], schema=schema)


def check_kept_keys(files: Sequence[InputFile], keep: Sequence[str]) -> None:
    """Refuse, before anything else is read, what no row of JSON Lines has; other formats say it by file.

    Reads up to the first row of each key: no further than a batch where the first rows have all of them.
    """
    if any(file.format != "jsonl" for file in files):
        return
    seen: dict[str, None] = {}
    for file in files:
        with reading(file):
            for lines in jsonl.read_lines(file, BATCH_ROWS):
                seen.update(dict.fromkeys(chain.from_iterable(row for row in lines.rows if row)))
                if seen.keys() >= set(keep):
                    return
    for name in keep:
        if seen and name not in seen:
            others = f" or {plural(len(files) - 1, 'other file')}" if len(files) > 1 else ""
            raise DataError(
                f"input.keep: no row of {files[0].object.uri}{others} has the key "
                f"{name!r}{nearest(name, seen)}"
            )


def _json_batches(
    file: InputFile, wanted: list[str] | None, batch_rows: int, text_names: Collection[str]
) -> Iterator[RowBatch]:
    rows = 0
    seen: dict[str, None] = {}
    for lines in jsonl.read_lines(file, batch_rows):
        keys = dict.fromkeys(chain.from_iterable(row for row in lines.rows if row))
        seen.update(keys)
        columns: list[pa.Array] = []
        fields: list[pa.Field] = []
        for name in dict.fromkeys([*keys, *text_names]) if wanted is None else wanted:
            cells = [row.get(name) if row else None for row in lines.rows]
            if name in text_names:
                for i in json_columns.drop_other_values(cells):
                    lines.errors[lines.first_row + i] = f"{name!r} is not text"
            array, kind = json_columns.infer_column(cells)
            columns.append(array)
            fields.append(note(pa.field(name, array.type), file.path, kind))
        rows += len(lines.rows)
        table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
        yield RowBatch(lines.first_row, len(lines.rows), table, lines.errors, lines.line_of)
    if not rows:
        empty = pa.schema(
            [note(pa.field(name, pa.null()), file.path, Kind.ABSENT) for name in wanted or text_names]
        )
        yield RowBatch(0, 0, empty.empty_table(), {})
    elif seen:
        _check_columns(file, list(text_names), list(seen))


def _typed_json(file: InputFile, lines: jsonl.Lines, field: pa.Field) -> pa.Array:
    cells = [row.get(field.name) if row else None for row in lines.rows]
    if types.is_string(field.type):
        return json_columns.text_column(cells)
    return _cast(file, json_columns.infer_column(cells)[0], field)


def _typed(file: InputFile, table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name not in table.schema.names:
        return pa.nulls(table.num_rows, field.type)
    return _cast(file, table[field.name], field)


def _cast(file: InputFile, column: pa.ChunkedArray | pa.Array, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if types.is_string(field.type) and types.is_binary(plain_type(column.type)):
        return decode_column(column)[0]  # a text column of bytes: those that are no text are rows in error
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{file.object.uri}: column {field.name!r} does not fit {field.type}: {error}"
        ) from None


def _parquet_batch(file: InputFile, first_row: int, table: pa.Table, text_names: Collection[str]) -> RowBatch:
    errors: dict[int, str] = {}
    for name in text_names:
        if not is_text(table[name].type):
            raise DataError(f"{file.object.uri}: column {name!r} holds {table[name].type}; expected text")
        column, problems = decode_column(table[name])
        table = table.set_column(table.schema.get_field_index(name), name, column)
        for row, why in problems.items():
            errors.setdefault(first_row + row, f"column {name!r} is {why}")
    return RowBatch(first_row, table.num_rows, _noted(table, file, None), errors)


def _noted(table: pa.Table, file: InputFile, kind: Kind | None) -> pa.Table:
    fields = [note(field, file.path, kind) for field in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


def _check_columns(file: InputFile, wanted: Sequence[str], names: Sequence[str]) -> None:
    counts = Counter(names)
    for name in dict.fromkeys(wanted):
        if not counts[name]:
            hint = nearest(name, names)
            if file.format == "csv" and len(names) == 1 and OTHER_SEPARATORS.intersection(names[0]):
                hint = f"; its header is the one column {names[0]!r}: write it with commas as separators"
            raise DataError(f"{file.object.uri}: no column {name!r}{hint}")
        if counts[name] > 1:
            raise DataError(
                f"{file.object.uri}: column {name!r} stands there {counts[name]} times; rename one"
            )
