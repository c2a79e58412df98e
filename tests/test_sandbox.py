"""The sandbox's parts without Airflow: corpus, finding and ending processes, ports, the shown result."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest
from faults import serve
from rich.console import Console
from rich.table import Table

from staticjob.errors import ConfigError, InfrastructureError
from staticjob.sandbox import corpus, processes, rest, view
from staticjob.sandbox.airflow import AirflowSandbox
from staticjob.sandbox.corpus import sample_rows, stdlib_rows, write_corpus
from staticjob.sandbox.processes import MARKER, end_marked, marked
from staticjob.sandbox.view import SinceFirst, result_table, rows_table


def _written(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            rows += pq.read_table(BytesIO(path.read_bytes())).to_pylist()
        else:
            rows += [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    return rows


def test_the_corpus_is_thousands_of_docstrings_of_every_kind_with_ids_no_float_can_hold() -> None:
    rows = stdlib_rows()
    assert 3000 < len(rows) < 12_000
    assert {row.kind for row in rows} == {"module", "class", "function", "method"}
    assert len({row.id for row in rows}) == len(rows)
    assert sum(row.id > 2**53 for row in rows) > 0.99 * len(rows)
    assert all(row.id < 2**63 for row in rows)


def test_the_corpus_reads_modules_without_running_them() -> None:
    stdlib_rows()
    assert not {"antigravity", "this", "turtle"} & set(sys.modules)


def test_a_sample_is_written_in_both_formats_in_the_order_it_was_drawn(tmp_path: Path) -> None:
    rows = write_corpus(str(tmp_path), 500, seed=3)
    assert {path.name.partition(".")[2] for path in tmp_path.iterdir()} == {"parquet", "jsonl.gz"}
    assert [row["id"] for row in _written(tmp_path)] == [row.id for row in rows]
    assert [row["text"] for row in _written(tmp_path)] == [row.text for row in rows]


def test_the_lengths_of_a_sample_are_shuffled() -> None:
    lengths = [len(row.text) for row in sample_rows(500, seed=0)]
    assert lengths != sorted(lengths)
    assert lengths != sorted(lengths, reverse=True)


def test_the_same_sample_is_the_same_bytes_so_that_a_second_demo_finds_its_input_unchanged(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        write_corpus(str(tmp_path / name), 200)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(files) == corpus.FILES
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)


def test_an_empty_sample_is_a_dataset_of_no_rows(tmp_path: Path) -> None:
    assert write_corpus(str(tmp_path), 0) == []
    assert _written(tmp_path) == []


def test_a_process_that_left_its_group_and_ignores_sigterm_is_found_and_ended(tmp_path: Path) -> None:
    value = str(tmp_path)
    stubborn = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "os.fork() or os.setsid(); print('ready', flush=True); time.sleep(300)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", stubborn], env={**os.environ, MARKER: value}, stdout=subprocess.PIPE
    )
    bystander = subprocess.Popen(["sleep", "300"], env={**os.environ, MARKER: value + "-other"})
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        assert len(marked(value)) == 2
        end_marked(value, grace=0.2)
        assert marked(value) == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        process.wait()


def test_a_taken_port_is_named_and_nothing_is_left_running(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sandbox = AirflowSandbox(tmp_path, jobs=tmp_path, env={}, port=port)
        with pytest.raises(ConfigError, match=rf"port {port} on 127.0.0.1 is taken"):
            sandbox.start()
    assert sandbox.running() == []


def test_a_second_airflow_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    running = subprocess.Popen(["sleep", "300"], env={MARKER: str(tmp_path)})
    try:
        with pytest.raises(ConfigError, match="is running; stop it first"):
            AirflowSandbox(tmp_path, jobs=tmp_path, env={}).start()
    finally:
        end_marked(str(tmp_path), grace=5)
        running.wait()


def test_processes_that_outlive_a_kill_are_named_instead_of_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    # One that hangs in the kernel cannot be made: the listing says it is there, whatever is sent.
    monkeypatch.setattr(processes, "marked", lambda value: [ended.pid])
    monkeypatch.setattr(processes, "KILL_SECONDS", 0.2)
    with pytest.raises(InfrastructureError, match=f"STATICJOB_SANDBOX=/x: processes {ended.pid} do not end"):
        end_marked("/x", grace=0)


def test_speed_counts_from_the_first_paid_slots_and_tells_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr(view, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=time.sleep))
    speed = SinceFirst()
    assert speed.text(useful=500, slots=1000, planned=5000) == ""  # kept from an earlier run: no speed
    assert speed.text(useful=1400, slots=2000, planned=5000) == "90 useful tokens/s, 30 s left"
    assert speed.text(useful=4000, slots=5000, planned=5000) == ""


def _shown(table: Table) -> str:
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(table)
    return console.export_text()


def test_rows_of_the_output_are_shown_with_long_values_cut() -> None:
    row = {"id": 2**60, "embedding": [0.125] * 384, "status": "truncated", "reason": "r" * 50}
    text = _shown(rows_table([row], "s3://embeddings/x/a.parquet"))
    assert "first rows of s3://embeddings/x/a.parquet" in text
    assert str(2**60) in text
    assert "[0.125, 0.125, 0.125, … 384]" in text
    assert f"{'r' * 39}…" in text


@pytest.mark.parametrize(
    ("reused", "expected", "compute"),
    [
        (
            4,
            "all 4 chunks kept from an earlier run, nothing was computed again",
            "1.0 s, $0.10, by earlier runs",
        ),
        (1, "3 of 4 chunks computed", "1.0 s, $0.10, a part of it by earlier runs"),
        (0, "4 of 4 chunks computed", "1.0 s, $0.10 "),
    ],
)
def test_the_result_says_what_was_kept_and_what_was_computed(
    tmp_path: Path, reused: int, expected: str, compute: str
) -> None:
    result = {
        "rows": 9,
        "statuses": {"ok": 8, "empty": 1},
        "useful_share": 0.9,
        "ledger": {"slots": 1234},
        "seconds": 1.0,
        "cost": 0.1,
        "output": "s3://embeddings/x",
    }
    status: Any = SimpleNamespace(
        commits=("c",) * 4, reused=reused, prepared=SimpleNamespace(config=SimpleNamespace(name="job"))
    )
    text = _shown(result_table(result, status, tmp_path / "report.html", 3.0))
    assert expected in text
    assert compute in text
    assert "s3://embeddings/x" in text
    assert "report.html" in text
    assert "9 (8 ok, 1 empty)" in text


class _Locked(BaseHTTPRequestHandler):
    """Airflow's API: its database is locked at every first call of a path."""

    called: ClassVar[list[str]] = []

    def _answer(self) -> None:
        call = f"{self.command} {self.path}"
        first = call not in self.called and "token" not in call
        self.called.append(call)
        body = b'{"access_token": "t"}'
        self.send_response(500 if first else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PATCH = do_POST = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_call_that_may_be_sent_twice_is_sent_again_when_the_database_was_locked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rest, "PAUSE_SECONDS", 0)
    with serve(_Locked) as url:
        api = rest.AirflowApi(url, "user", "password")
        assert api.get("/pools/gpu")
        assert api.patch("/dags/x", {"is_paused": False})
        with pytest.raises(InfrastructureError, match="POST /api/v2/dags/x/dagRuns: 500"):
            api.post("/dags/x/dagRuns", {})
    assert _Locked.called.count("POST /api/v2/dags/x/dagRuns") == 1
