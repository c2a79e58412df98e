"""Rows in: order, types, bad rows and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from staticjob import dataset
from staticjob.config.job import InputConfig
from staticjob.dataset.csv import BLOCKS
from staticjob.errors import DataError
from staticjob.records.prepared import FileSlice, InputFile


def discover(folder: Path) -> tuple[InputFile, ...]:
    return dataset.discover(InputConfig(uri=str(folder), columns={"text": "text"}))


def only(folder: Path) -> InputFile:
    (file,) = discover(folder)
    return file


def read(
    file: InputFile, columns: Sequence[str] | None = None, batch_rows: int = 4096, **options: Any
) -> list[dataset.RowBatch]:
    return list(dataset.read_slice(file, FileSlice(file=file.index), columns, batch_rows, **options))


def rows_of(batches: list[dataset.RowBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.table.to_pylist()]


def errors_of(batches: list[dataset.RowBatch]) -> dict[int, str]:
    return {row: why for batch in batches for row, why in batch.errors.items()}


def kept(folder: Path, keep: Any) -> pa.Table:
    files = discover(folder)
    columns = None if keep == "all" else keep
    schema = dataset.kept_schema([batch.table.schema for file in files for batch in read(file, columns)])
    return pa.concat_tables([table for file in files for table in dataset.read_kept(file, keep, schema)])


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """The rows in the format of the path's suffix."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    elif path.suffix == ".csv":
        path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]))
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows))


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("batch_rows", [1, 10, 4096])
def test_batches_cover_all_rows_in_order(tmp_path: Path, suffix: str, batch_rows: int) -> None:
    rows = [{"id": f"i{i}", "text": f"t{i * 7919 % 97}"} for i in range(50)]
    write(tmp_path / f"a.{suffix}", rows)
    batches = read(only(tmp_path), ["text", "id"], batch_rows)
    assert [(row["id"], row["text"]) for row in rows_of(batches)] == [(r["id"], r["text"]) for r in rows]
    assert [batch.first_row for batch in batches] == [
        sum(b.rows for b in batches[:i]) for i in range(len(batches))
    ]
    assert all(batch.rows == batch.table.num_rows <= batch_rows for batch in batches)
    assert batches[0].table.schema.names == ["text", "id"]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_missing_text_column_names_file_column_and_nearest(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"a.{suffix}", [{"id": 1, "texts": "x"}])
    with pytest.raises(DataError, match=rf"a\.{suffix}: no column 'text'; did you mean 'texts'\?"):
        read(only(tmp_path), ["text", "id"], text=["text"])
    with pytest.raises(DataError, match=rf"a\.{suffix}: no column 'body'; valid: id, texts"):
        read(only(tmp_path), None, text=["body"])


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_missing_kept_column_is_refused(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"a.{suffix}", [{"id": 1, "text": "x"}])
    with pytest.raises(DataError, match=r"no column 'idd'; did you mean 'id'\?"):
        read(only(tmp_path), ["text", "idd"])


def test_a_json_key_that_some_rows_lack_is_null_there_and_refused_if_no_row_has_it(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "b"}])
    write(tmp_path / "b.jsonl", [{"text": "c"}, {"text": "d", "id": 5}])
    assert kept(tmp_path, ["id"])["id"].to_pylist() == [None, None, None, 5]
    with pytest.raises(DataError, match="no row of the input has the key 'idd'"):
        kept(tmp_path, ["idd"])


def test_json_values_keep_their_types_and_mixtures_become_text(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        [
            {"i": 1, "f": 1, "b": True, "s": "x", "o": {"k": [1, 2]}, "m": 1, "w": 2**60, "n": None},
            {"i": None, "f": 0.5, "b": None, "s": "1", "o": [], "m": "one", "w": 0.5, "n": None},
        ],
    )
    table = kept(tmp_path, "all")
    assert table.schema == pa.schema(
        {
            "i": pa.int64(),
            "f": pa.float64(),
            "b": pa.bool_(),
            "s": pa.string(),
            "o": pa.string(),
            "m": pa.string(),
            "w": pa.string(),
            "n": pa.null(),
        }
    )
    assert table.to_pylist() == [
        {"i": 1, "f": 1.0, "b": True, "s": "x", "o": '{"k": [1, 2]}', "m": "1", "w": str(2**60), "n": None},
        {"i": None, "f": 0.5, "b": None, "s": "1", "o": "[]", "m": "one", "w": "0.5", "n": None},
    ]


def test_json_types_are_settled_over_all_batches_and_files(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"v": 1, "x": 1}] * 3)
    write(tmp_path / "b.jsonl", [{"v": 0.5, "x": 2**64}] * 3)
    table = kept(tmp_path, ["v", "x"])
    assert table["v"].to_pylist() == [1.0] * 3 + [0.5] * 3
    assert table["x"].to_pylist() == ["1"] * 3 + [str(2**64)] * 3


def test_what_json_forbids_but_writers_emit_is_read(tmp_path: Path) -> None:
    lines = [r'{"text": "a\\ud83d \ud83d\ude00", "v": NaN}', r'{"te\ud83d": 1, "text": "b", "v": -Infinity}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    rows = rows_of(read(only(tmp_path), ["text", "v"]))
    assert [row["text"] for row in rows] == ["a\\ud83d \U0001f600", "b"]
    assert str(rows[0]["v"]) == "nan"
    assert rows[1]["v"] == float("-inf")


def test_rows_in_error_have_null_kept_cells_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "a"}\nbroken\n{"id": 3, "text": 5}\n{"id": 4}\n')
    (tmp_path / "b.csv").write_bytes(b"id,text\n1,a\n2,b,c\n3,\xff\n4,d\n5\n")
    assert kept(tmp_path, ["id"])["id"].to_pylist() == ["1", None, "3", "4", "1", None, "3", "4", None]


def test_csv_rows_with_other_field_counts_are_errors_in_their_place(tmp_path: Path) -> None:
    rng = random.Random(5)
    bad = {i for i in range(3000) if rng.random() < 0.2 or i > 2950}
    lines = [f"{i},t{i}" + (",more" if i in bad else "") for i in range(3000)]
    (tmp_path / "a.csv").write_text("\n".join(["id,text", *lines]) + "\n")
    batches = read(only(tmp_path), ["id", "text"], 100)
    assert [row["id"] for row in rows_of(batches)] == [None if i in bad else str(i) for i in range(3000)]
    assert set(errors_of(batches)) == bad
    some = min(bad)
    assert errors_of(batches)[some] == "3 fields where 2 are expected"
    assert all(
        batch.first_row <= row < batch.first_row + batch.rows for batch in batches for row in batch.errors
    )


@pytest.mark.parametrize("rows", [["1,a,b"] * 5, []])
def test_csv_without_a_good_row_has_its_bad_rows_or_none(tmp_path: Path, rows: list[str]) -> None:
    (tmp_path / "a.csv").write_text("\n".join(["id,text", *rows]))
    batches = read(only(tmp_path), ["id"])
    assert [row["id"] for row in rows_of(batches)] == [None] * len(rows)
    assert len(errors_of(batches)) == len(rows)
    assert batches[0].table.schema.names == ["id"]


def test_a_csv_cell_that_is_not_utf8_is_a_row_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,a\n2,caf\xe9\n3,c\n")
    batches = read(only(tmp_path), ["id", "text"])
    assert [row["text"] for row in rows_of(batches)] == ["a", None, "c"]
    assert errors_of(batches) == {1: "column 'text' is not UTF-8 (byte 0xe9 at offset 3)"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Arrow tells of the bytes
def test_a_csv_row_with_too_many_fields_and_other_bytes_is_a_row_error(tmp_path: Path) -> None:
    content = '\ufeffid,té\n1,"ä\n"\n'.encode() + b"2,\xff,x\n3,\xfe\n" + "4,\U0001f44d\n".encode()
    (tmp_path / "a.csv").write_bytes(content)
    batches = read(only(tmp_path), ["id", "té"])
    assert [row["té"] for row in rows_of(batches)] == ["ä\n", None, None, "\U0001f44d"]
    assert errors_of(batches) == {
        1: "3 fields where 2 are expected",
        2: "column 'té' is not UTF-8 (byte 0xfe at offset 0)",
    }


def test_a_csv_row_in_error_is_told_by_the_line_an_editor_shows(tmp_path: Path) -> None:
    content = '\ufeff"id\nnumber",text\r\n\r\n1,"a\nb\n"\r\n2,b,c\r\n\n3,"c"\n4\n'
    (tmp_path / "a.csv").write_bytes(content.encode())
    batches = read(only(tmp_path), ["text"], 2)
    assert [batch.line_of(row) for batch in batches for row in batch.errors] == [7, 10]


def test_csv_cells_may_hold_lines_quotes_and_more_than_a_block(tmp_path: Path) -> None:
    long = "x" * (BLOCKS[0] + 5)
    texts = ["a\nb", 'say ""hi""', *(f"t{i}" for i in range(200_000)), long, "last"]
    body = "".join(f'{i},"{text}"\n' for i, text in enumerate(texts))
    (tmp_path / "a.csv").write_text("id,text\n" + body)
    rows = rows_of(read(only(tmp_path), ["id", "text"]))
    assert [row["text"] for row in rows] == [text.replace('""', '"') for text in texts]
    assert [row["id"] for row in rows] == [str(i) for i in range(len(texts))]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Arrow tells of the bytes
@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("last.csv", 'id,text\n1,a\n2,"b\n3,c\n', 3),
        ("first.csv", 'text,id\n"a,1\nb,2\n', 2),
        ("bare.csv", 'id,text\n1,"a', 2),
        ("bytes.csv", b'text,id\n"\xff,1\nb,2\n', 2),
        ("blank.csv", 'id,text\n\n1,"a\nb"\n2,"c\n', 5),
    ],
)
def test_a_csv_quote_left_open_is_refused_instead_of_swallowing_rows(
    tmp_path: Path, name: str, content: str | bytes, line: int
) -> None:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=rf"{name}: line {line}: a quote is left open"):
        read(only(tmp_path))


@pytest.mark.parametrize("end", ["", "\n", "\r\n\r\n"])
def test_a_csv_cell_that_ends_with_a_newline_may_end_the_file(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.csv").write_bytes(f'id,text\n1,"a\n"{end}'.encode())
    assert rows_of(read(only(tmp_path))) == [{"id": "1", "text": "a\n"}]


def test_a_csv_with_other_separators_is_told_to_have_commas(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;text\n1;x\n")
    with pytest.raises(
        DataError, match=r"no column 'text'; its header is the one column 'id;text': write it with"
    ):
        read(only(tmp_path), ["text"])


def test_a_csv_column_that_stands_twice_is_refused_where_it_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,id,text\n1,2,x\n")
    assert rows_of(read(only(tmp_path), ["text"])) == [{"text": "x"}]
    with pytest.raises(DataError, match="column 'id' stands there 2 times"):
        read(only(tmp_path), ["id"])


@pytest.mark.parametrize("name", ["a.parquet", "a.csv.gz", "a.jsonl.zst"])
def test_a_corrupt_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not what the suffix says\n" * 10)
    with pytest.raises(DataError, match=rf"{name}: cannot be read as"):
        read(only(tmp_path), ["text"])


def test_a_corrupt_parquet_page_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"text {i}" for i in range(1000)]})
    pq.write_table(table, path, write_page_checksum=True, compression="none")
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as parquet: .*CRC"):
        read(only(tmp_path), ["text"])


def test_parquet_text_that_is_not_utf8_is_a_row_error_and_half_characters_are_replaced(
    tmp_path: Path,
) -> None:
    cells = [b"a", b"\xff", "\ud83d!".encode("utf-8", "surrogatepass"), None]
    text = pa.Array.from_buffers(pa.string(), 4, pa.array(cells, pa.binary()).buffers())
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    batches = read(only(tmp_path), ["text"], text=["text"])
    assert [row["text"] for row in rows_of(batches)] == [
        "a",
        None,
        "\ufffd!",
        None,
    ]
    assert list(errors_of(batches)) == [1]


def test_kept_text_of_bytes_is_null_where_it_is_no_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [b"a", b"\xff", None]}), tmp_path / "p.parquet")
    file = only(tmp_path)
    schema = dataset.kept_schema([batch.table.schema for batch in read(file, text=["text"])])
    (table,) = dataset.read_kept(file, "all", schema)
    assert table["text"].to_pylist() == ["a", None, None]


def test_a_parquet_column_of_numbers_is_no_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: column 'text' holds int64; expected text"):
        read(only(tmp_path), ["text"], text=["text"])
    with pytest.raises(DataError, match="here: the text column holds int64"):
        dataset.text_values(pa.chunked_array([[1]]), "here")


@pytest.mark.parametrize(
    "type_",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int8(), pa.string())],
)
def test_text_of_every_encoding_is_the_same_text(type_: pa.DataType) -> None:
    values = ["é", None, ""]
    column = pa.chunked_array([pa.array(values)])
    encoded = column.dictionary_encode() if pa.types.is_dictionary(type_) else column.cast(type_)
    assert dataset.text_values(encoded, "x") == values
    assert dataset.text_values(pa.chunked_array([pa.nulls(2)]), "x") == [None, None]


def test_long_documents_come_in_smaller_batches(tmp_path: Path) -> None:
    table = pa.table({"text": [f"{i}" + "x" * 1_000_000 for i in range(60)]})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", use_dictionary=False)
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    for file in discover(tmp_path):
        sizes = [batch.rows for batch in read(file, ["text"])]
        assert sum(sizes) == 60
        assert max(sizes) < 40


def test_kept_all_takes_the_union_of_the_files_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [{"id": 1, "text": "a"}])
    write(tmp_path / "b.parquet", [{"text": "b", "extra": 0.5}])
    assert kept(tmp_path, "all").to_pylist() == [
        {"id": 1, "text": "a", "extra": None},
        {"id": None, "text": "b", "extra": 0.5},
    ]


def test_no_kept_column_reads_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [{"id": 1, "text": "a"}])
    file = only(tmp_path)
    (tmp_path / "a.parquet").unlink()
    assert list(dataset.read_kept(file, (), pa.schema([]))) == []
