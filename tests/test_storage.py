"""The same promises on S3 and on disk."""

from __future__ import annotations

import io
import random
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel

from staticjob import storage
from staticjob.config.job import InputConfig
from staticjob.dataset.discover import discover
from staticjob.errors import ConfigError, DataError, InfrastructureError
from staticjob.layout import join
from staticjob.storage import local
from staticjob.storage.multipart import PART_BYTES, part_bytes


@pytest.fixture(params=["s3", "local"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder of either kind."""
    return join(request.getfixturevalue("s3").uri, "x") if request.param == "s3" else str(tmp_path / "x")


def test_an_object_is_read_back_as_it_was_put(folder: str) -> None:
    uri = join(folder, "a b", "ü#?%41.bin")
    storage.put(uri, b"one")
    storage.put(uri, b"three")
    assert storage.read(uri) == b"three"
    assert [item.uri for item in storage.list_objects(folder)] == [uri]


def test_a_missing_object_is_none_to_head_and_an_error_to_read(folder: str) -> None:
    uri = join(folder, "none")
    assert storage.head(uri) is None
    assert storage.find(uri) is None
    assert storage.find_json(uri, Note) is None
    assert storage.list_objects(folder) == []
    with pytest.raises(DataError, match="none: there is no such"):
        storage.read(uri)


def test_a_folder_is_not_an_object(folder: str) -> None:
    storage.put(join(folder, "sub/a"), b"x")
    assert storage.head(join(folder, "sub")) is None


def test_a_uri_of_an_object_lists_that_object(folder: str) -> None:
    uri = join(folder, "a.csv")
    storage.put(uri, b"xy")
    assert storage.list_objects(uri) == [storage.head(uri)]
    assert storage.list_objects(uri)[0].size == 2


def test_ranges_end_where_the_object_ends(folder: str) -> None:
    uri = join(folder, "a")
    storage.put(uri, b"0123456789")
    pin = storage.head(uri)
    assert pin is not None
    for source in (uri, pin):
        assert storage.read_range(source, 2, 3) == b"234"
        assert storage.read_range(source, 8, 9) == b"89"
        assert storage.read_range(source, 10, 5) == b""
        assert storage.read_range(source, 3, 0) == b""


def test_a_pinned_read_refuses_another_object_of_the_same_size(folder: str) -> None:
    uri = join(folder, "a")
    storage.put(uri, b"first!")
    pin = storage.head(uri)
    assert pin is not None
    storage.put(uri, b"second")
    for read in (lambda p: storage.read_range(p, 0, 2), lambda p: storage.open_pinned(p).read()):
        with pytest.raises(DataError, match="a: changed since the plan"):
            read(pin)
    storage.delete([uri])
    with pytest.raises(DataError, match="a: gone since the plan"):
        storage.open_pinned(pin).read()


def test_of_many_writers_at_once_one_puts_an_absent_object(folder: str) -> None:
    uri = join(folder, "commit.json")
    start = threading.Barrier(8)

    def put(name: bytes) -> bool:
        start.wait()
        return storage.put_if_absent(uri, name)

    names = [b"%d" % i for i in range(8)]
    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(put, names))
    assert won.count(True) == 1
    assert storage.read(uri) == names[won.index(True)]
    assert len(storage.list_objects(folder)) == 1


@pytest.mark.parametrize("size", [0, 5, PART_BYTES, 4 * PART_BYTES + 17])
def test_a_writer_publishes_all_bytes_on_a_clean_exit_and_not_before(folder: str, size: int) -> None:
    uri = join(folder, "big")
    data = random.Random(1).randbytes(size)
    with storage.writer(uri) as file:
        for start in range(0, size, 3_000_000):
            file.write(memoryview(data)[start : start + 3_000_000])
        assert storage.head(uri) is None
        assert storage.list_objects(folder) == []
    assert storage.read(uri) == data


@pytest.mark.parametrize("size", [5, PART_BYTES + 5])
def test_a_writer_that_fails_leaves_nothing(folder: str, size: int, request: pytest.FixtureRequest) -> None:
    storage.put(join(folder, "kept"), b"old")

    def write_and_fail(name: str) -> None:
        with storage.writer(join(folder, name)) as file:
            file.write(b"x" * size)
            raise RuntimeError("stop here")

    for name in ("new", "kept"):
        with pytest.raises(RuntimeError, match="stop here"):
            write_and_fail(name)
    assert [Path(item.uri).name for item in storage.list_objects(folder)] == ["kept"]
    assert storage.read(join(folder, "kept")) == b"old"
    if storage.is_s3(folder):
        assert request.getfixturevalue("s3").open_uploads() == []
    else:
        assert [path.name for path in Path(folder).iterdir()] == ["kept"]


def test_part_sizes_let_ten_thousand_parts_hold_a_large_object() -> None:
    assert part_bytes(1) == part_bytes(1000) == PART_BYTES
    assert sum(map(part_bytes, range(1, 10_001))) > 400 * 2**30


def test_what_lies_beneath_a_folder_can_be_deleted_without_its_namesakes(folder: str) -> None:
    for name in ("data/a", "data/b/c", "data2/b", "data-old/c"):
        storage.put(join(folder, name), b"x")
    storage.delete(item.uri for item in storage.list_objects(join(folder, "data")))
    storage.delete([join(folder, "data/a"), join(folder, "data2/b")])
    assert [item.uri for item in storage.list_objects(folder)] == [join(folder, "data-old/c")]


def test_a_pinned_reader_seeks_like_a_file(folder: str) -> None:
    data = random.Random(2).randbytes(3_000_000)
    uri = join(folder, "a")
    storage.put(uri, data)
    pin = storage.head(uri)
    assert pin is not None
    expected, file, rng = io.BytesIO(data), storage.open_pinned(pin), random.Random(3)
    for _ in range(60):
        if rng.random() < 0.5:
            offset, whence = rng.choice([(rng.randrange(len(data)), 0), (-rng.randrange(99), 2)])
            assert file.seek(offset, whence) == expected.seek(offset, whence)
        size = rng.choice([1, 100, 70_000, 900_000])
        assert file.read(size) == expected.read(size)
        assert file.tell() == expected.tell()
    file.seek(0)
    assert b"".join(io.BufferedReader(file)) == data


def test_reading_on_takes_few_requests_and_seeking_takes_small_ones() -> None:
    from staticjob.storage.ranges import FIRST_WINDOW, RangeReader

    data = bytes(100 * 1024 * 1024)
    asked: list[int] = []

    def fetch(start: int, length: int) -> bytes:
        asked.append(length)
        return data[start : start + length]

    file = RangeReader(len(data), fetch)
    while file.read(100_000):
        pass
    assert len(asked) < 20
    asked.clear()
    file.seek(1000)
    file.read(10)
    assert asked == [FIRST_WINDOW]


class Note(BaseModel):
    text: str


def test_records_are_stored_as_json_and_refused_when_they_are_something_else(folder: str) -> None:
    uri = join(folder, "note.json")
    assert storage.put_json_if_absent(uri, Note(text="é"))
    assert not storage.put_json_if_absent(uri, Note(text="other"))
    assert storage.read_json(uri, Note) == Note(text="é")
    for data, problem in ((b'{"tex', "damaged"), (b'{"title": "e"}', "not a Note")):
        storage.put(uri, data)
        for read in (storage.read_json, storage.find_json):
            with pytest.raises(DataError, match=rf"note\.json: {problem}"):
                read(uri, Note)


def test_a_bucket_that_is_missing_is_one_clear_line(s3: object) -> None:
    for use in (
        storage.list_objects,
        storage.read,
        lambda uri: storage.put(uri, b""),
        lambda uri: storage.put_if_absent(uri, b""),
    ):
        with pytest.raises(ConfigError, match="s3://no-such-bucket/x: the bucket does not exist"):
            use("s3://no-such-bucket/x")


@pytest.mark.parametrize(
    ("name", "code"), [("AWS_ACCESS_KEY_ID", "InvalidAccessKeyId"), ("AWS_SECRET_ACCESS_KEY", "")]
)
def test_refused_credentials_are_one_clear_line(
    s3: object, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    monkeypatch.setenv(name, "wrong")
    for use in (storage.list_objects, storage.head, storage.read):
        with pytest.raises(ConfigError, match=rf"s3://some-bucket/x: .*({code}|refused|denied).*check"):
            use("s3://some-bucket/x")


def test_absent_credentials_are_one_clear_line(
    s3: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConfigError, match="no credentials found"):
        storage.read("s3://some-bucket/x")


def test_a_uri_without_a_bucket_or_with_an_impossible_one_is_refused(s3: object) -> None:
    for uri in ("s3://", "s3:///x", "s3://b!/x"):
        with pytest.raises(ConfigError, match=f"{uri}: .*bucket's name"):
            storage.read(uri)


def test_file_uris_and_paths_name_the_same_object(tmp_path: Path) -> None:
    storage.put(f"file://{tmp_path}/a b", b"x")
    assert storage.read(f"{tmp_path}/a b") == b"x"


@pytest.mark.parametrize("form", ["./{0}", "{0}/", "file://{1}/{0}"])
def test_listed_objects_are_spelled_as_their_folder_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = form.format("data", tmp_path)
    storage.put(join(folder, "sub", "a"), b"x")
    assert [item.uri for item in storage.list_objects(folder)] == [join(folder, "sub", "a")]


def test_linked_folders_are_read_and_circles_are_not(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a").write_text("x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/link").symlink_to(tmp_path / "real")
    (tmp_path / "real/up").symlink_to(tmp_path / "data")
    assert [item.uri for item in storage.list_objects(str(tmp_path / "data"))] == [f"{tmp_path}/data/link/a"]


def test_an_object_of_many_parts_can_be_pinned(folder: str) -> None:
    uri = join(folder, "big")
    with storage.writer(uri) as file:
        file.write(bytes(PART_BYTES))
        file.write(b"the end")
    pin = storage.head(uri)
    assert pin is not None
    assert pin in storage.list_objects(folder)
    assert storage.read_range(pin, PART_BYTES, 100) == b"the end"
    assert len(storage.open_pinned(pin).read()) == PART_BYTES + 7


def test_a_writer_may_be_closed_by_the_library_that_writes_to_it(folder: str) -> None:
    uri = join(folder, "table.arrow")
    table = pa.table({"a": range(1000)})
    with (
        storage.writer(uri) as file,
        pa.PythonFile(file, "w") as sink,
        pa.ipc.new_file(sink, table.schema) as ipc,
    ):
        ipc.write_table(table)
    (pin,) = storage.list_objects(uri)
    with storage.open_pinned(pin) as file, pa.ipc.open_file(file) as reader:
        assert reader.read_all() == table


def test_a_full_disk_is_one_line_with_path_and_bytes_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_full_device(self: local._File, path: Path, uri: str) -> None:
        path.touch()
        io.FileIO.__init__(self, "/dev/full", "wb")
        self._uri = uri

    monkeypatch.setattr(local._File, "__init__", open_full_device)

    def stream() -> None:
        with storage.writer(f"{tmp_path}/a") as file:
            for _ in range(3):
                file.write(bytes(1_000_000))

    for write in (
        lambda: storage.put(f"{tmp_path}/a", b"12345"),
        lambda: storage.put_if_absent(f"{tmp_path}/a", b"12345"),
        stream,
    ):
        with pytest.raises(InfrastructureError) as raised:
            write()
        assert re.search(
            rf"cannot write {tmp_path}/a: no space left .*[0-9] bytes are needed", str(raised.value)
        )
        assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, why in (("file/a", "File exists"), ("file/b/a", "Not a directory")):
        with pytest.raises(ConfigError, match=f"cannot write {tmp_path}/{name}: {why}; correct the path"):
            storage.put(f"{tmp_path}/{name}", b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=f"cannot write {tmp_path}/folder: Is a directory"):
        storage.put(f"{tmp_path}/folder", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


WRITING = """
import sys
from staticjob import storage

with storage.writer(sys.argv[1]) as file:
    file.write(bytes(2_000_000))
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_writer_left_is_never_input_and_goes_when_its_folder_is_written_to_again(
    tmp_path: Path,
) -> None:
    def start(name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WRITING, f"{tmp_path}/{name}"]
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, cwd=Path(__file__).parent.parent, stdin=pipe, stdout=pipe)
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        return child

    with start("killed.csv") as killed, start("alive.csv") as alive:
        killed.kill()
        killed.wait()
        assert len(list(tmp_path.iterdir())) == 2
        assert storage.list_objects(str(tmp_path)) == []
        with pytest.raises(DataError, match="no data there"):
            discover(InputConfig(uri=str(tmp_path), columns={"text": "text"}))
        storage.put(f"{tmp_path}/other", b"x")
        (hidden,) = tmp_path.glob(".*")
        assert hidden.name.startswith(".alive.csv."), "a file being written stays"
        alive.communicate(timeout=60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alive.csv", "other"]


FORKING = """
import multiprocessing, sys
from concurrent.futures import ThreadPoolExecutor
from staticjob import storage

uri = sys.argv[1]
storage.put(uri, b"x")
with ThreadPoolExecutor(8) as threads, multiprocessing.get_context("fork").Pool(2) as children:
    in_threads = threads.map(lambda _: storage.read(uri), range(50))
    in_children = children.map(storage.read, [uri] * 20)
    assert set(in_threads) | set(in_children) == {b"x"}
"""


def test_threads_and_forked_children_use_the_store_at_once(s3: Any) -> None:
    # In an interpreter of its own: other tests leave threads here that no fork survives.
    command = [sys.executable, "-c", FORKING, f"{s3.uri}/a"]
    subprocess.run(command, cwd=Path(__file__).parent.parent, check=True, timeout=120)


def test_local_jobs_never_load_boto3() -> None:
    code = "import sys; from staticjob import storage; storage.head('/x'); sys.exit('boto3' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, check=True)
