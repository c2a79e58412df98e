"""Input files that real users met: cases F1 to F9, each with its right outcome."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import zstandard

from staticjob import dataset
from staticjob.config.job import InputConfig
from staticjob.errors import DataError
from staticjob.records.prepared import FileSlice, InputFile


def discover(folder: Path, **options: Any) -> tuple[InputFile, ...]:
    return dataset.discover(InputConfig(uri=str(folder), columns={"text": "text"}, **options))


def read(file: InputFile, columns: Sequence[str] | None = None, **options: Any) -> list[dataset.RowBatch]:
    return list(dataset.read_slice(file, FileSlice(file=file.index), columns, **options))


def records(file: InputFile, columns: Sequence[str] | None = None, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in read(file, columns, **options) for row in batch.table.to_pylist()]


def kept(files: Sequence[InputFile], keep: Any) -> pa.Table:
    """What the merge writes of the kept columns, all files one after another."""
    columns = None if keep == "all" else keep
    schemas = [batch.table.schema for file in files for batch in read(file, columns)]
    schema = dataset.decode_schema(dataset.encode_schema(dataset.kept_schema(schemas)))
    tables = [table for file in files for table in dataset.read_kept(file, keep, schema)]
    return pa.concat_tables([schema.empty_table(), *tables])


IDS = [9223372036854775807, None, 1582218195625938945, 1970670598291982290]


def write_ids(path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": pa.array(IDS, pa.int64()), "text": ["a"] * 4}), path)
    elif path.suffix == ".csv":
        path.write_text("id,text\n" + "".join(f"{'' if i is None else i},a\n" for i in IDS))
    else:
        path.write_text("".join(json.dumps({"id": i, "text": "a"}) + "\n" for i in IDS))


@pytest.mark.parametrize("suffixes", [["parquet"], ["csv"], ["jsonl"], ["csv", "jsonl", "parquet"]])
def test_f1_ids_keep_every_digit_and_null_stays_null(tmp_path: Path, suffixes: list[str]) -> None:
    for suffix in suffixes:
        write_ids(tmp_path / f"ids.{suffix}")
    out = io.BytesIO()
    pq.write_table(kept(discover(tmp_path), ["id"]), out)
    values = pq.read_table(out)["id"].to_pylist()
    spelled = [None if i is None else str(i) for i in IDS] * len(suffixes)
    assert [None if v is None else str(v) for v in values] == spelled


def test_f1_json_integers_beyond_64_bits_keep_every_digit(tmp_path: Path) -> None:
    big = [2**64 + 1, -(2**70), 10**400, 5]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id": {i}, "text": "a"}}\n' for i in big))
    assert kept(discover(tmp_path), ["id"])["id"].to_pylist() == [str(i) for i in big]


def test_f2_text_types_of_four_files_become_one_and_no_row_is_lost(tmp_path: Path) -> None:
    texts = ["x", "é", None]
    columns = {
        "a": (pa.nulls(3), pa.int64()),
        "b": (pa.array(texts, pa.string()), pa.int32()),
        "c": (pa.array(texts).dictionary_encode(), pa.int64()),
        "d": (pa.array(texts, pa.large_string()), pa.int64()),
    }
    for name, (column, id_type) in columns.items():
        pq.write_table(
            pa.table({"id": pa.array([1, 2, 3], id_type), "text": column}), tmp_path / f"{name}.parquet"
        )
    table = kept(discover(tmp_path), "all")
    assert table.schema == pa.schema({"id": pa.int64(), "text": pa.string()})
    assert table["id"].to_pylist() == [1, 2, 3] * 4
    assert table["text"].to_pylist() == [None] * 3 + texts * 3
    read_texts = [
        value
        for file in discover(tmp_path)
        for batch in read(file, ["text"], text=["text"])
        for value in dataset.text_values(batch.table["text"], file.path)
    ]
    assert read_texts == [None] * 3 + texts * 3


def test_f2_types_that_do_not_fit_name_column_types_and_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["x"], "text": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "text": ["a"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"'id': string in a\.parquet and int64 in b\.parquet"):
        kept(discover(tmp_path), ["id"])


def write_parquet_without_rows(folder: Path) -> pa.Schema:
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    pq.ParquetWriter(folder / "none.parquet", schema).close()
    with pq.ParquetWriter(folder / "one.parquet", schema) as writer:
        writer.write_table(schema.empty_table())
    return schema


def test_f3_files_without_rows_add_none_and_still_give_a_schema(tmp_path: Path) -> None:
    schema = write_parquet_without_rows(tmp_path)
    empty = kept(discover(tmp_path), "all")
    assert (empty.num_rows, empty.schema) == (0, schema)
    assert [batch.rows for file in discover(tmp_path) for batch in read(file)] == [0, 0]
    pq.write_table(
        pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]}, schema=schema), tmp_path / "p.parquet"
    )
    assert kept(discover(tmp_path), "all")["id"].to_pylist() == [1, 2, 3]


def test_f4_only_data_is_read_beside_markers_and_leftovers(s3: Any) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"]}), out)
    for key in ("_SUCCESS", ".p.parquet.crc", "x_$folder$", "_temporary/0/p9.parquet"):
        s3.put(f"data/{key}", b"junk")
    s3.put("data/", b"")
    s3.put("data/sub/", b"")
    s3.put("data/p0.parquet", out.getvalue())
    config = InputConfig(uri=f"{s3.uri}/data", columns={"text": "text"})
    assert [file.path for file in dataset.discover(config)] == ["p0.parquet"]
    s3.put("data/p1.parquet", b"")
    with pytest.raises(DataError, match=r"data/p1\.parquet: a data object of 0 bytes"):
        dataset.discover(config)


def test_f5_partitions_that_differ_in_spelling_stay_apart(tmp_path: Path) -> None:
    for hour in ("hour=1", "hour=01"):
        (tmp_path / hour).mkdir()
        (tmp_path / hour / "p.jsonl").write_text(json.dumps({"text": hour}))
    files = discover(tmp_path)
    assert [file.output for file in files] == ["hour=01/p.parquet", "hour=1/p.parquet"]
    assert [records(file)[0]["text"] for file in files] == ["hour=01", "hour=1"]


JSON_ROWS = [{"id": 1, "text": "a"}, {"id": 2, "text": "b\u2028c"}, {"id": 3, "text": None}]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_f6_bom_crlf_and_blank_lines_change_nothing(tmp_path: Path, suffix: str) -> None:
    if suffix == "jsonl":
        lines = [json.dumps(row, ensure_ascii=False) for row in JSON_ROWS]
    else:
        lines = ["id,text", '1,"a"', "2,b\u2028c", "3,"]
    (tmp_path / f"plain.{suffix}").write_bytes("\n".join(lines).encode())
    marked = "\ufeff\r\n" + "\r\n\r\n".join(lines) + "\r\n\r\n"
    (tmp_path / f"windows.{suffix}").write_bytes(marked.encode())
    plain, windows = (records(file) for file in discover(tmp_path))
    assert plain == windows
    assert next(iter(windows[0])) == "id"
    assert [row["text"] for row in windows] == ["a", "b\u2028c", None]


def test_f7_six_lines_give_six_outcomes_in_order(tmp_path: Path) -> None:
    long = "y" * 40_000_000
    lines = [
        b'{"text": "first"}',
        rb'{"text": "x\ud83d"}',
        rb'{"text": "\ud83d\udc4d"}',
        b'{"text": "\xff"}',
        json.dumps({"text": long}).encode(),
        b'{"text": "last"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    (file,) = discover(tmp_path)
    batches = read(file, ["text"], text=["text"])
    texts = [value for batch in batches for value in dataset.text_values(batch.table["text"], file.path)]
    assert texts == ["first", "x\ufffd", "\U0001f44d", None, long, "last"]
    assert {row: why for batch in batches for row, why in batch.errors.items()} == {
        3: "not UTF-8 (byte 0xff at offset 10)"
    }


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "input data was truncated"),
        (b"[1]", "not a JSON object"),
        (b'{"text": 5}', "'text' is not text"),
        (b'{"text": {"a": 1}}', "'text' is not text"),
        (b'{"text": "a"} x', "JSON is malformed: trailing"),
        (b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
    ],
)
def test_a_bad_line_is_a_row_error_with_its_line_number(tmp_path: Path, line: bytes, why: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n\n' + line + b'\n{"text": "b"}')
    (file,) = discover(tmp_path)
    (batch,) = read(file, ["text"], text=["text"])
    assert batch.table["text"].to_pylist() == ["a", None, "b"]
    assert list(batch.errors) == [1]
    assert batch.errors[1].startswith(why)
    assert batch.line_of(1) == 3


def test_json_in_a_text_column_that_is_nested_too_deeply_is_a_row_error() -> None:
    cells = ["[1]", "[" * 100_000, "[2]"]
    values, problems = dataset.structured_values(pa.chunked_array([cells]))
    assert values == [[1], None, [2]]
    assert problems == {1: "is nested too deeply"}


def test_half_characters_that_json_in_a_text_column_spells_are_replaced() -> None:
    cells = [r'[{"role": "user", "content": "\ud800 a"}]', r'["\ud83d\ude00", "\udc00"]']
    values, problems = dataset.structured_values(pa.chunked_array([cells]))
    assert values == [[{"role": "user", "content": "\ufffd a"}], ["\U0001f600", "\ufffd"]]
    assert not problems


def two_members(compress: Any, lines: list[str]) -> bytes:
    whole = [line.encode() for line in lines]
    return bytes(compress(b"".join(whole[:-1])) + compress(whole[-1]))


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("zst", zstandard.compress)])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_f8_all_members_of_a_compressed_file_are_read(
    tmp_path: Path, suffix: str, compress: Any, kind: str
) -> None:
    head = [] if kind == "jsonl" else ["text\n"]
    lines = head + [f'{{"text": "r{i}"}}\n' if kind == "jsonl" else f"r{i}\n" for i in (1, 2, 3)]
    (tmp_path / f"a.{kind}.{suffix}").write_bytes(two_members(compress, lines))
    (file,) = discover(tmp_path)
    assert [row["text"] for row in records(file)] == ["r1", "r2", "r3"]
    assert file.output == "a.parquet"


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("zst", zstandard.compress)])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("left", [0.5, 0.99])
def test_f8_a_truncated_stream_fails_and_names_the_key(
    tmp_path: Path, suffix: str, compress: Any, kind: str, left: float
) -> None:
    head = "" if kind == "jsonl" else "text\n"
    rows = "".join(f'{{"text": "{i * 7919}"}}\n' if kind == "jsonl" else f"{i * 7919}\n" for i in range(9999))
    data = compress((head + rows).encode())
    (tmp_path / f"a.{kind}.{suffix}").write_bytes(data[: int(len(data) * left)])
    (file,) = discover(tmp_path)
    with pytest.raises(DataError, match=rf"a\.{kind}\.{suffix}: cannot be read as {kind} .*[Tt]runcated"):
        read(file)


def test_f9_csv_words_for_nothing_are_literal_and_an_empty_field_is_null(tmp_path: Path) -> None:
    words = ["null", "NA", "None", "nan", "N/A", "NULL", "#N/A"]
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(f"1,{word}\n" for word in words) + '1,\n1,""\n')
    (file,) = discover(tmp_path)
    assert [row["text"] for row in records(file)] == [*words, None, ""]
    assert pa_csv.read_csv(tmp_path / "a.csv")["text"].to_pylist() != [*words, None, ""]
