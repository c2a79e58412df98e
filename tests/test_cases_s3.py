"""What S3 and its kin do to real users: cases S1 to S7, each with its right outcome."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faults import Fault, Proxy, fault_proxy, serve

from staticjob import dataset, storage
from staticjob.config.job import InputConfig
from staticjob.errors import ConfigError, DataError, InfrastructureError
from staticjob.layout import join
from staticjob.records.prepared import FileSlice, InputFile
from staticjob.storage.multipart import PART_BYTES
from staticjob.storage.retry import ATTEMPTS, DELAY, TIMEOUT, Patience


@pytest.fixture
def proxy(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A fault proxy that the code under test takes for the store; its retries come fast."""
    with fault_proxy(os.environ["AWS_ENDPOINT_URL"]) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        monkeypatch.setenv(DELAY, "0.001")
        yield running


def discover(uri: str) -> tuple[InputFile, ...]:
    return dataset.discover(InputConfig(uri=uri, columns={"text": "text"}))


def texts(file: InputFile) -> list[str]:
    batches = dataset.read_slice(file, FileSlice(file=file.index), ["text"], text=["text"])
    return [value for batch in batches for value in batch.table["text"].to_pylist()]


@pytest.mark.parametrize("slash", ["", "/"])
def test_s1_a_prefix_is_a_folder_and_not_the_start_of_a_name(s3: Any, slash: str) -> None:
    for key in ("data/a.csv", "data2/b.csv", "data-old/c.csv", "data.csv"):
        s3.put(key, b"text\nx\n")
    assert [file.path for file in discover(f"{s3.uri}/data{slash}")] == ["a.csv"]


def test_s2_all_pages_of_a_listing_are_read_in_natural_order(s3: Any) -> None:
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda i: s3.put(f"in/part-{i}.csv", b"text\nx\n"), range(1, 1002)))
    files = discover(f"{s3.uri}/in")
    assert [file.path for file in files] == [f"part-{i}.csv" for i in range(1, 1002)]
    assert [file.index for file in files] == list(range(1001))
    storage.delete(file.object.uri for file in files)
    assert s3.keys() == []


@pytest.fixture(params=["s3", "local"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("s3").uri + "/in" if request.param == "s3" else str(tmp_path / "in")


def parquet_bytes(letter: str) -> bytes:
    """Two row groups, incompressible; of the same size for every letter."""
    out = io.BytesIO()
    rng = random.Random(1)
    rows = [letter + rng.randbytes(500).hex() for _ in range(4000)]
    pq.write_table(pa.table({"text": rows}), out, row_group_size=2000, compression="none")
    return out.getvalue()


def test_s3_an_object_replaced_after_the_plan_is_an_error_before_any_row(folder: str) -> None:
    first, second = parquet_bytes("a"), parquet_bytes("b")
    assert len(first) == len(second)
    storage.put(join(folder, "p.parquet"), first)
    (file,) = discover(folder)
    storage.put(join(folder, "p.parquet"), second)
    with pytest.raises(DataError, match=r"p\.parquet: changed since the plan"):
        texts(file)
    with pytest.raises(DataError, match=r"p\.parquet: changed since the plan"):
        list(dataset.read_kept(file, ["text"], pa.schema({"text": pa.string()})))


@pytest.mark.parametrize("name", ["p.parquet", "p.jsonl"])
def test_s3_an_object_replaced_while_it_is_read_never_gives_a_mixture(folder: str, name: str) -> None:
    def content(letter: str) -> bytes:
        if name == "p.parquet":
            return parquet_bytes(letter)
        return json.dumps({"text": letter * 1000}).encode().ljust(1023).__add__(b"\n") * 4000

    storage.put(join(folder, name), content("a"))
    (file,) = discover(folder)
    batches = dataset.read_slice(file, FileSlice(file=0), ["text"], 100)
    seen = [next(batches)]
    storage.put(join(folder, name), content("b"))
    with pytest.raises(DataError, match="changed since the plan"):
        seen.extend(batches)
    assert {value[0] for batch in seen for value in batch.table["text"].to_pylist()} == {"a"}


def test_s4_six_refusals_in_a_row_are_waited_out(proxy: Proxy, s3: Any) -> None:
    assert Patience().attempts > 6
    proxy.faults = [Fault("refuse", method, "in/", times=6) for method in ("PUT", "GET", "HEAD", "POST")]
    uri = f"{s3.uri}/in/a"
    data = random.Random(4).randbytes(PART_BYTES + 10)
    with storage.writer(uri) as file:
        file.write(data)
    assert storage.read(uri) == data
    assert storage.head(uri) is not None
    assert [fault.times for fault in proxy.faults] == [0, 0, 0, 0]


def test_an_outage_of_half_a_minute_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda shortest, longest: shortest)
    assert sum(Patience().delays()) > 30


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_s4_a_store_that_stays_down_leaves_no_key_and_no_open_upload(
    proxy: Proxy, s3: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv(ATTEMPTS, "2")
    # POST: the start of the upload succeeds, its completion does not.
    path = "in/a" if method == "PUT" else r"in/a\?uploadId"
    proxy.faults = [Fault("refuse", method, path, times=6)]

    def write() -> None:
        with storage.writer(f"{s3.uri}/in/a") as file:
            file.write(bytes(2 * PART_BYTES + 10))

    with pytest.raises(InfrastructureError, match=r"cannot write s3://.*/in/a: the store is busy"):
        write()
    assert s3.keys() == []
    assert s3.open_uploads() == []


def test_s4_a_listing_that_stays_down_is_an_error_and_not_an_empty_input(
    proxy: Proxy, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ATTEMPTS, "2")
    s3.put("in/a.csv")
    proxy.faults = [Fault("refuse", "GET", "list-type", times=2)]
    with pytest.raises(InfrastructureError, match="cannot list"):
        discover(f"{s3.uri}/in")


def test_a_put_if_absent_whose_answer_was_lost_is_still_won(proxy: Proxy, s3: Any) -> None:
    proxy.faults = [Fault("lose the answer", "PUT", "in/commit")]
    assert storage.put_if_absent(f"{s3.uri}/in/commit", b"mine")
    proxy.faults = [Fault("refuse", "PUT", "in/commit")]
    assert not storage.put_if_absent(f"{s3.uri}/in/commit", b"theirs")
    assert s3.get("in/commit") == b"mine"


def test_an_upload_whose_completion_answer_was_lost_is_published(proxy: Proxy, s3: Any) -> None:
    proxy.faults = [Fault("lose the answer", "POST", r"in/a\?uploadId")]
    with storage.writer(f"{s3.uri}/in/a") as file:
        file.write(bytes(PART_BYTES + 1))
    assert len(s3.get("in/a")) == PART_BYTES + 1
    assert proxy.faults[0].times == 0


def test_s5_a_store_that_knows_no_chunked_trailers_stores_the_bytes_that_were_sent(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: dict[str, bytes] = {}

    class RawStore(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            stored[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("ETag", '"raw"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serve(RawStore) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        storage.put("s3://raw/put", b"toto\n")
        storage.put_if_absent("s3://raw/absent", b"toto\n")
        with storage.writer("s3://raw/writer") as file:
            file.write(b"toto\n")
    assert stored == dict.fromkeys(["/raw/put", "/raw/absent", "/raw/writer"], b"toto\n")


def expire(proxy: Proxy, key: str) -> None:
    """From now on the store refuses `key` as expired; a real server has no key that expires."""
    proxy.faults = [
        Fault("refuse", method, "", times=10**6, status=400, code="ExpiredToken", header=f"Credential={key}/")
        for method in ("GET", "HEAD", "PUT", "POST")
    ]


def test_s6_credentials_that_expire_are_looked_up_again_once(
    proxy: Proxy, s3: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good_key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    def sign_in(key: str) -> None:
        text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
        (tmp_path / "credentials").write_text(text)

    sign_in("OLDKEY")
    expire(proxy, "OLDKEY")
    uri = s3.put("in/a", b"old")
    with pytest.raises(InfrastructureError, match="credentials have expired; renew them"):
        storage.read(uri)
    sign_in(good_key)
    seen = len(proxy.seen)
    assert storage.read(uri) == b"old"
    assert len(proxy.seen) - seen == 2
    sign_in("OLDKEY")
    storage.client.forget_client()
    with pytest.raises(InfrastructureError, match="credentials have expired"):
        storage.head(uri)
    assert s3.get("in/a") == b"old"


def test_s6_a_writer_whose_credentials_expire_loses_nothing_that_was_published(proxy: Proxy, s3: Any) -> None:
    storage.put(f"{s3.uri}/in/flushed-1", b"done")

    def write() -> None:
        with storage.writer(f"{s3.uri}/in/flushed-2") as file:
            file.write(bytes(PART_BYTES))
            expire(proxy, os.environ["AWS_ACCESS_KEY_ID"])
            file.write(bytes(PART_BYTES))

    with pytest.raises(InfrastructureError, match="expired"):
        write()
    assert s3.keys() == ["in/flushed-1"]
    proxy.faults = []
    assert storage.read(f"{s3.uri}/in/flushed-1") == b"done"


@pytest.mark.parametrize("effect", ["cut the body", "stall the body"])
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_s7_a_body_cut_short_or_stalled_is_fetched_again_to_the_same_rows(
    proxy: Proxy, s3: Any, monkeypatch: pytest.MonkeyPatch, effect: Any, name: str
) -> None:
    monkeypatch.setenv(TIMEOUT, "0.3")
    lines = [f"text {i}" for i in range(20_000)]
    if name == "a.parquet":
        out = io.BytesIO()
        pq.write_table(pa.table({"text": lines}), out)
        s3.put(f"in/{name}", out.getvalue())
    else:
        s3.put(f"in/{name}", "\n".join(json.dumps({"text": line}) for line in lines).encode())
    (file,) = discover(f"{s3.uri}/in")
    proxy.faults = [Fault(effect, "GET", f"in/{name}", times=2)]
    assert texts(file) == lines
    assert proxy.faults[0].times == 0


@pytest.mark.parametrize("effect", ["cut the body", "stall the body"])
def test_s7_a_store_that_never_delivers_a_body_is_an_infrastructure_failure(
    proxy: Proxy, s3: Any, monkeypatch: pytest.MonkeyPatch, effect: Any
) -> None:
    monkeypatch.setenv(TIMEOUT, "0.2")
    monkeypatch.setenv(ATTEMPTS, "2")
    s3.put("in/a.jsonl", b'{"text": "a"}\n' * 100)
    (file,) = discover(f"{s3.uri}/in")
    proxy.faults = [Fault(effect, "GET", r"in/a\.jsonl", times=100)]
    with pytest.raises(InfrastructureError, match=r"cannot read s3://.*in/a\.jsonl: .*run again"):
        texts(file)


def test_a_store_that_cannot_be_reached_is_an_infrastructure_failure(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv(ATTEMPTS, "2")
    monkeypatch.setenv(DELAY, "0.001")
    with pytest.raises(InfrastructureError, match="AWS_ENDPOINT_URL"):
        storage.read("s3://bucket/a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(ConfigError, match=r"nonsense; check the endpoint.*AWS_ENDPOINT_URL"):
        storage.read("s3://bucket/a")
    monkeypatch.setenv(TIMEOUT, "soon")
    with pytest.raises(ConfigError, match=f"{TIMEOUT}='soon'"):
        storage.read("s3://bucket/a")
