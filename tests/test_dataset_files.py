"""Which objects are input, in which order, what their outputs are called and how they are split."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from staticjob import dataset, storage
from staticjob.config.job import InputConfig
from staticjob.dataset.discover import is_hidden, natural_key, output_names
from staticjob.dataset.splits import Piece, pack
from staticjob.errors import ConfigError, DataError
from staticjob.records.prepared import InputFile
from staticjob.storage.pinned import PinnedObject

LINE = json.dumps({"text": "a"})


def discover(uri: str | Path, output: str | None = None, **options: Any) -> tuple[InputFile, ...]:
    return dataset.discover(InputConfig(uri=str(uri), columns={"text": "text"}, **options), output)


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(LINE)
    return folder


def test_formats_and_compression_come_from_the_suffix(tmp_path: Path) -> None:
    fill(tmp_path, "a.parquet", "b.jsonl.gz", "c.CSV", "d.ndjson.zst", "e.json", "f.snappy.parquet")
    assert [(file.format, file.compression) for file in discover(tmp_path)] == [
        ("parquet", None),
        ("jsonl", "gzip"),
        ("csv", None),
        ("jsonl", "zstd"),
        ("jsonl", None),
        ("parquet", None),
    ]


def test_a_given_format_holds_for_names_without_a_suffix(tmp_path: Path) -> None:
    fill(tmp_path, "part-0", "part-1.gz")
    files = discover(tmp_path, format="jsonl")
    assert [(file.format, file.compression) for file in files] == [("jsonl", None), ("jsonl", "gzip")]
    assert [file.output for file in files] == ["part-0.parquet", "part-1.parquet"]


@pytest.mark.parametrize("name", ["README.md", "a.parquet.gz", "a.csv.bz2"])
def test_a_file_that_cannot_be_read_is_refused_and_not_passed_over(tmp_path: Path, name: str) -> None:
    fill(tmp_path, "a.jsonl", name)
    with pytest.raises(DataError, match=name):
        discover(tmp_path)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((), "it is empty or does not exist"),
        (("_SUCCESS", ".hidden.jsonl", "_temporary/0/a.jsonl"), "3 objects, all hidden or markers"),
    ],
)
def test_an_input_without_data_says_what_was_looked_for(
    tmp_path: Path, names: tuple[str, ...], found: str
) -> None:
    fill(tmp_path, *names)
    with pytest.raises(DataError, match=rf"input\.uri {tmp_path}: no data there \({found}\)"):
        discover(tmp_path)


def test_a_uri_of_one_object_is_that_object(tmp_path: Path, s3: Any) -> None:
    fill(tmp_path, "in/a.jsonl", "in/b.jsonl")
    s3.put("in/a.jsonl", LINE.encode())
    for uri in (f"{tmp_path}/in/a.jsonl", f"{s3.uri}/in/a.jsonl", f"file://{tmp_path}/in/a.jsonl"):
        assert [(file.path, file.output) for file in discover(uri)] == [("a.jsonl", "a.parquet")]


@pytest.mark.parametrize("form", ["{0}", "{0}/", "file://{0}", "file://{0}/", "{0}/./"])
def test_paths_are_relative_to_the_input_however_it_is_written(tmp_path: Path, form: str) -> None:
    fill(tmp_path, "in/d=1/a.jsonl")
    assert [file.path for file in discover(form.format(tmp_path / "in"))] == ["d=1/a.jsonl"]


def test_markers_and_partitions_are_told_apart() -> None:
    assert all(
        map(
            is_hidden,
            ["_SUCCESS", "a/_x", "_t/0/a", ".a.crc", "a_$folder$", "a/", "", "_staticjob/x/a.parquet"],
        )
    )
    assert not any(map(is_hidden, ["a", "a/b_c.csv", "_year=1/a.csv", "x=_y/a"]))


def test_natural_order_compares_numbers_by_value_and_folders_first() -> None:
    names = ["a-1/x", "a/10", "a/2", "a/b", "p1", "p01", "p2", "p10", "p10.1", "é"]
    shuffled = random.Random(1).sample(names, len(names))
    assert sorted(shuffled, key=natural_key) == [
        "a/2",
        "a/10",
        "a/b",
        "a-1/x",
        "p01",
        "p1",
        "p2",
        "p10",
        "p10.1",
        "é",
    ]


def test_outputs_mirror_inputs_and_never_collide() -> None:
    assert output_names(["x/a.jsonl.gz", "b.csv", "c.d", "e.parquet"]) == {
        "x/a.jsonl.gz": "x/a.parquet",
        "b.csv": "b.parquet",
        "c.d": "c.d.parquet",
        "e.parquet": "e.parquet",
    }
    names = ["a.csv", "a.jsonl", "a.jsonl.parquet", "a.parquet", "a.jsonl.gz", "a", "b.csv"]
    outputs = output_names(names)
    assert len(set(outputs.values())) == len(names)
    assert outputs["b.csv"] == "b.parquet"


def test_an_output_inside_the_input_is_refused(tmp_path: Path, s3: Any) -> None:
    fill(tmp_path, "in/a.jsonl", "in/p.parquet")
    s3.put("in/a.jsonl", LINE.encode())
    for source in (str(tmp_path / "in"), f"{s3.uri}/in"):
        for output in (source, f"{source}/", f"{source}/out"):
            with pytest.raises(ConfigError, match="choose an output outside"):
                discover(source, output)
        assert discover(source, f"{source}-out")
    with pytest.raises(ConfigError, match=r"p\.parquet would overwrite an input"):
        discover(tmp_path / "in/p.parquet", str(tmp_path / "in"))
    assert discover(tmp_path / "in/a.jsonl", str(tmp_path / "in"))


def test_an_input_inside_the_output_is_refused(tmp_path: Path, s3: Any) -> None:
    fill(tmp_path, "data/in/a.jsonl", "data/in/p.parquet")
    s3.put("data/in/a.jsonl", LINE.encode())
    for data in (f"{tmp_path}/data", f"{s3.uri}/data"):
        for source in (f"{data}/in", f"{data}/in/", f"{data}/in/a.jsonl"):
            for output in (data, f"{data}/"):
                with pytest.raises(ConfigError, match="choose an output beside it"):
                    discover(source, output)
            assert discover(source, f"{data}/out")


def test_a_key_that_would_leave_the_output_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("../x.csv", "a//x.csv", "a/./x.csv"):
        item = PinnedObject(uri=f"s3://b/in/{key}", size=1, version="v")
        monkeypatch.setattr(storage, "list_objects", lambda uri, item=item: [item])
        with pytest.raises(DataError, match="cannot be mirrored"):
            discover("s3://b/in")


@pytest.mark.parametrize("name", [b"p\xff.jsonl", b"p\n.jsonl"])
def test_a_name_that_no_record_and_no_line_can_hold_is_refused(tmp_path: Path, name: bytes) -> None:
    fill(tmp_path, "p0.jsonl")
    (tmp_path / os.fsdecode(name)).write_text("{}")
    with pytest.raises(DataError, match="rename it") as caught:
        discover(tmp_path)
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


def test_a_name_may_hold_any_character_of_any_script(tmp_path: Path) -> None:
    fill(tmp_path, "é\u00a0ü %20+&=\u3000語.jsonl")
    assert [file.path for file in discover(tmp_path)] == ["é\u00a0ü %20+&=\u3000語.jsonl"]


def test_a_zero_byte_object_named_like_a_folder_is_a_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [
        PinnedObject(uri="s3://b/in/d=1", size=0, version="v"),
        PinnedObject(uri="s3://b/in/d=1/x.csv", size=1, version="v"),
    ]
    monkeypatch.setattr(storage, "list_objects", lambda uri: items)
    assert [file.path for file in discover("s3://b/in")] == ["d=1/x.csv"]


def test_small_files_are_packed_and_every_file_is_in_one_split(tmp_path: Path) -> None:
    fill(tmp_path, *(f"p{i}.jsonl" for i in range(300)))
    files = discover(tmp_path)
    assert len(dataset.plan_splits(files, max_splits=512)) == 2
    splits = dataset.plan_splits(files, max_splits=7, target_bytes=1)
    assert [split.id for split in splits] == [f"s0000{i}" for i in range(7)]
    assert [piece.file for split in splits for piece in split.slices] == list(range(300))
    assert max(len(split.slices) for split in splits) <= 44


def test_large_parquet_files_are_cut_at_row_groups_and_cover_all_rows(tmp_path: Path) -> None:
    rng = random.Random(2)
    rows = [rng.randbytes(50).hex() for _ in range(10_000)]
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet", row_group_size=900)
    pq.write_table(pa.table({"text": rows[:5]}), tmp_path / "b.parquet")
    files = discover(tmp_path)
    splits = dataset.plan_splits(files, target_bytes=150_000, max_splits=8)
    assert 1 < len(splits) <= 8
    slices = [piece for split in splits for piece in split.slices]
    assert sum(piece.file == 0 for piece in slices) > 1
    assert slices[-1].file == 1
    assert slices[-1].row_groups is None
    seen: list[str] = []
    for piece in slices:
        for batch in dataset.read_slice(files[piece.file], piece, ["text"]):
            assert batch.first_row == (len(seen) if piece.file == 0 else 0)
            seen += batch.table["text"].to_pylist()
    assert seen == rows + rows[:5]


def test_pieces_go_in_order_into_at_most_the_asked_number_of_even_runs() -> None:
    rng = random.Random(3)
    for number in (1, 3, 50):
        pieces = [Piece(i, rng.randrange(1, 100)) for i in range(200)]
        runs = pack(pieces, number)
        assert [piece for run in runs for piece in run] == pieces
        assert len(runs) <= number
        even = sum(piece.bytes for piece in pieces) / number
        assert max(sum(piece.bytes for piece in run) for run in runs) <= even + 100


def test_corrupt_large_parquet_files_are_named_when_splits_are_planned(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x" * 2000)
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as parquet"):
        dataset.plan_splits(discover(tmp_path), target_bytes=1000, max_splits=10**6)
