"""What people are told of a job comes from its objects alone."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from small_jobs import Planned, job, planned, texts, write_input

from staticjob import storage
from staticjob.errors import ConfigError, DataError
from staticjob.ledger import Ledger
from staticjob.local_run import run_job
from staticjob.prepare import prepare
from staticjob.records.commit import Progress
from staticjob.records.output import Manifest
from staticjob.status import SILENT_SECONDS, find_work, read_status
from staticjob.terminal.payloads import manifest_json, status_json
from staticjob.terminal.progress import show_status

# As of a chunk that generates.
LEDGER = Ledger(useful=100, padding=10, dummy=8, finished=10, slots=128)


@pytest.fixture
def made(tmp_path: Path) -> Planned:
    write_input(str(tmp_path / "in"), [*texts(60), "", None])
    return planned(job(str(tmp_path)))


def progress(made: Planned, state: str, age: float = 0.0, reason: str = "") -> None:
    chunk = made.plan.chunks[0]
    beat = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age)
    record = Progress.model_validate(
        {
            "chunk": chunk.id,
            "state": state,
            "worker": "host:1",
            "batches_done": 1,
            "batches_total": chunk.batches,
            "rows_done": chunk.batch,
            "ledger": LEDGER,
            "seconds": 1.0,
            "heartbeat": beat.isoformat(),
            "reason": reason,
        }
    )
    storage.put_json(made.work.progress(chunk.id), record)


def test_the_states_of_a_job_follow_its_objects(tmp_path: Path) -> None:
    write_input(str(tmp_path / "in"), texts(20))
    config = job(str(tmp_path))
    prepare(config)
    assert read_status(config.output.uri).state == "prepared"
    made = planned(config)
    assert read_status(config.output.uri).state == "planned"
    progress(made, "running")
    running = read_status(config.output.uri)
    assert running.state == "running"
    assert running.rows_done == made.plan.chunks[0].batch
    assert running.ledger.slots == 128
    run_job(config)
    assert read_status(config.output.uri).state == "done"


def test_a_finished_job_tells_all_its_rows_per_status_and_where_its_report_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_input(str(tmp_path / "in"), [*texts(20), "", None])
    config = job(str(tmp_path), output={"uri": "out"})
    outcome = run_job(config)
    found = read_status("out")
    assert found.statuses == outcome.manifest.statuses
    assert sum(found.statuses.values()) == 22
    show_status(found)
    shown = capfd.readouterr().out.splitlines()
    assert "  rows    22 of 22 answered, 2 of them without the model" in shown
    assert "  status  20 ok, 1 empty, 1 null" in shown
    assert f"  output  {tmp_path}/out" in shown
    assert f"  work    {outcome.work.uri}" in shown
    assert outcome.work.uri.startswith(f"{tmp_path}/out/")
    assert f"  report  {tmp_path}/out/report.html" in shown


def test_a_job_with_too_many_row_errors_has_failed_and_says_why(tmp_path: Path) -> None:
    storage.put(f"{tmp_path}/in/p.jsonl", b"broken\n" * 3)
    config = job(str(tmp_path), input={"keep": []})
    with pytest.raises(DataError, match="3 of 3 rows have status error"):
        run_job(config)
    found = read_status(config.output.uri)
    assert found.state == "failed"
    assert status_json(found)["trouble"] == ["3 rows have status error, limits.max_error_rate allows 1.00%"]


def test_a_chunk_without_a_recent_heartbeat_is_not_running(made: Planned) -> None:
    progress(made, "running", age=SILENT_SECONDS + 5)
    status = read_status(made.output.uri)
    assert status_json(status)["chunks"]["running"] == 0
    assert status.state == "planned"


def test_every_ledger_that_is_printed_sums(made: Planned) -> None:
    progress(made, "running")
    manifest = Manifest(
        job="small",
        task="generate",
        fingerprint=made.prepared.fingerprint,
        rows=1,
        statuses={},
        ledger=LEDGER,
        files=(),
        engines={},
        forecast=made.plan.forecast,
        seconds=1.0,
        cost=None,
        rates=None,
        versions={},
        command="",
        finished="",
    )
    printed = (status_json(read_status(made.work.uri)), manifest_json(made.prepared, manifest))
    for ledger in (payload["ledger"] for payload in printed):
        assert ledger["slots"] == 128
        assert ledger["useful"] + ledger["padding"] + ledger["dummy"] + ledger["finished"] == 128


def test_a_failed_chunk_shows_its_reason(made: Planned, capsys: pytest.CaptureFixture[str]) -> None:
    progress(made, "failed", reason="InfrastructureError: the device is gone")
    status = read_status(made.work.uri)
    assert status.state == "failed"
    show_status(status)
    assert "the device is gone" in capsys.readouterr().out


def test_the_output_folder_and_the_work_prefix_mean_the_same_job(made: Planned) -> None:
    assert find_work(made.output.uri) == find_work(made.work.uri) == made.work


@pytest.mark.parametrize("form", ["./out", "out/", "file://{0}/out"])
def test_finished_work_counts_however_the_output_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_input(str(tmp_path / "in"), texts(20))
    made = planned(job(str(tmp_path), output={"uri": form.format(tmp_path)}))
    assert read_status(made.output.uri).splits_done == len(made.prepared.splits) > 0


def test_a_folder_no_job_wrote_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no job has this folder as its output"):
        read_status(str(tmp_path))
