"""The job files of all tasks that take one pass, as they are in `jobs/`, and a sweep, under a real scheduler.

One Airflow runs them all at once over the test store. Models are seeded and tiny, at the addresses that the
files name; every result is compared with Hugging Face's of the row alone.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx
import numpy as np
import pytest
import yaml
from airflow_runs import Run
from small_jobs import read_output
from tiny_encoders import rows
from tiny_tasks import class_logits, save_causal, save_classifier, save_tokenizer, token_logprobs, words
from tokenizers import Tokenizer

from staticjob import storage
from staticjob.config.job_file import read_job_file
from staticjob.evaluation.results import SweepResult
from staticjob.layout import Output, join
from staticjob.records.output import Manifest
from staticjob.records.status import Status
from staticjob.report.data import Report
from staticjob.sandbox.airflow import REPOSITORY, USER, AirflowSandbox
from staticjob.sandbox.corpus import sample_rows, write_corpus
from staticjob.sandbox.demo import trigger
from staticjob.sandbox.stack import terminated_as_interrupt
from staticjob.sandbox.store import SeaweedStore

DATE = "2026-01-31"
ROWS = 24
FIRST = 12  # rows of the first file: whole queries
KINDS = ("class", "function", "method", "module")
NAMES = ("docstring_kinds", "search_ranks", "answer_rewards", "gsm8k_likelihoods")
SWEEP = "kinds_by_limit"
LAST = 98  # of the words that every tokenizer has: in a chat the last two are roles
TEXTS = [words([min(i, LAST) for i in row]) for row in rows([3, 30, 12, 7, 25, 9, 18, 5] * 3, seed=1)]
OTHERS = [words([min(i, LAST) for i in row]) for row in rows([9, 4, 17, 2, 40, 11, 6, 28] * 3, seed=2)]
pytestmark = pytest.mark.timeout(600)  # the first test waits for Airflow to start, too


def _jobs() -> dict[str, dict[str, Any]]:
    """The job files but for their schedules; the sweep is one over two classifiers that share tokens."""
    jobs = {name: read_job_file(REPOSITORY / "jobs" / f"{name}.yaml") for name in (*NAMES, SWEEP)}
    for job in jobs.values():
        job["airflow"]["schedule"] = None
    jobs[SWEEP]["limits"]["max_length"] = 128
    jobs[SWEEP]["sweep"] = {"model.path": ["s3://models/docstring-kind/", "s3://models/other-kind/"]}
    return jobs


def _models(folder: Path) -> dict[str, Path]:
    """By the last part of their address."""
    long = {"max_position_embeddings": 2048}
    reward = save_classifier("llama", folder / "reward", ("reward",), pad_token_id=9, eos_token_id=9, **long)
    return {
        "docstring-kind": save_tokenizer(save_classifier("bert", folder / "kind", KINDS, **long)),
        "other-kind": save_tokenizer(
            save_classifier("bert", folder / "other", KINDS, **{**long, "initializer_range": 0.5})
        ),
        "cross-encoder": save_tokenizer(save_classifier("bert", folder / "cross", ("score",), **long)),
        "reward": save_tokenizer(reward, chat=True),
        "smollm2-135m-instruct": save_tokenizer(
            save_causal("llama", folder / "causal", bos_token_id=2, **long), first=True
        ),
    }


def _write(uri: str, **columns: list[Any]) -> None:
    """Rows as two JSON Lines gz files."""
    records = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for number, part in enumerate((records[:FIRST], records[FIRST:])):
        lines = "".join(json.dumps(record) + "\n" for record in part)
        storage.put(join(uri, f"p{number}.jsonl.gz"), gzip.compress(lines.encode(), mtime=0))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return _models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def airflow(
    s3_server: SeaweedStore, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowSandbox]:
    """Airflow over the test store, with every job's input and model where its file says."""
    folder = tmp_path_factory.mktemp("jobs")
    for name, job in _jobs().items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(job))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.env().items():
            patch.setenv(name, value)
        for bucket in ("models", "corpus", "labels", "search", "assistant", "evaluation"):
            boto3.Session().client("s3").create_bucket(Bucket=bucket)
        for name, directory in models.items():
            for path in directory.iterdir():
                storage.put(f"s3://models/{name}/{path.name}", path.read_bytes())
        write_corpus(f"s3://corpus/docstrings/{DATE}/", ROWS)
        ids = list(range(ROWS))
        groups = [i // 6 for i in ids]
        _write(f"s3://search/found/{DATE}/", query_id=groups, document_id=ids, query=TEXTS, document=OTHERS)
        _write(f"s3://assistant/answers/{DATE}/", id=ids, prompt=TEXTS, response=OTHERS)
        _write(f"s3://evaluation/gsm8k/{DATE}/", id=ids, question=TEXTS, answer=[f" {t}" for t in OTHERS])
        environment = {**s3_server.env(), "STATICJOB_CACHE": str(tmp_path_factory.mktemp("cache"))}
        home = tmp_path_factory.mktemp("airflow")
        with terminated_as_interrupt(), AirflowSandbox(home, jobs=folder, env=environment) as sandbox:
            yield sandbox
        assert sandbox.running() == []


@pytest.fixture(scope="module")
def runs(airflow: AirflowSandbox) -> dict[str, Run]:
    """A run of every job, all triggered at once."""
    api = airflow.api()
    return {
        name: Run(
            api, name, trigger(api, name, {"date": DATE}), Output(job["output"]["uri"].format(date=DATE))
        )
        for name, job in _jobs().items()
    }


def _finished(run: Run, task: str) -> list[dict[str, Any]]:
    """The rows of a run that has ended well, all of them answered."""
    run.succeeds()
    manifest = storage.read_json(run.output.manifest, Manifest)
    assert (manifest.task, manifest.rows) == (task, ROWS)
    assert set(manifest.statuses) <= {Status.OK, Status.TRUNCATED}
    report = storage.read_json(run.output.report_json, Report)
    assert (report.state, report.task) == ("done", task)
    return read_output(run.output)


def _numbers(text: str) -> list[int]:
    """The ids of a text of words."""
    return [int(word[1:]) for word in text.split()]


def _ids(model: Path, text: str, limit: int) -> list[int]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_truncation(limit)
    return list(tokenizer.encode(text).ids)


def test_docstrings_are_classified(runs: dict[str, Run], models: dict[str, Path]) -> None:
    out = _finished(runs["docstring_kinds"], "classify")
    sample = sample_rows(ROWS, 0)
    assert [row["id"] for row in out] == [row.id for row in sample]
    model = models["docstring-kind"]
    expected = class_logits(model, [_ids(model, row.text, 128) for row in sample]).softmax(1).numpy()
    np.testing.assert_allclose([row["scores"] for row in out], expected, rtol=2e-5, atol=1e-7)
    assert [row["label"] for row in out] == [KINDS[i] for i in expected.argmax(1)]


def test_documents_are_ranked_within_their_query(runs: dict[str, Run], models: dict[str, Path]) -> None:
    out = _finished(runs["search_ranks"], "rerank")
    pairs = [([2, *_numbers(q), 3], [*_numbers(d), 3]) for q, d in zip(TEXTS, OTHERS, strict=True)]
    types = [[0] * len(q) + [1] * len(d) for q, d in pairs]
    expected = class_logits(models["cross-encoder"], [q + d for q, d in pairs], types).sigmoid()[:, 0]
    np.testing.assert_allclose([row["score"] for row in out], expected.numpy(), rtol=2e-5)
    for query in range(4):
        own = sorted((row for row in out if row["query_id"] == query), key=lambda row: -row["score"])
        assert [row["rank"] for row in own] == [1, 2, 3, 4, 5, 6]


def test_answers_are_rewarded(runs: dict[str, Run], models: dict[str, Path]) -> None:
    out = _finished(runs["answer_rewards"], "reward")
    ids = [[99, *_numbers(p), 9, 100, *_numbers(r), 9] for p, r in zip(TEXTS, OTHERS, strict=True)]
    expected = class_logits(models["reward"], ids, pad_token_id=None)[:, 0].numpy()
    np.testing.assert_allclose([row["reward"] for row in out], expected, rtol=2e-5, atol=1e-6)


def test_answers_have_their_likelihoods(runs: dict[str, Run], models: dict[str, Path]) -> None:
    out = _finished(runs["gsm8k_likelihoods"], "logprob")
    answers = [_numbers(text) for text in OTHERS]
    ids = [[2, *_numbers(q), *answer] for q, answer in zip(TEXTS, answers, strict=True)]
    for row, text, answer, own in zip(
        out, ids, answers, token_logprobs(models["smollm2-135m-instruct"], ids), strict=True
    ):
        chances = [own[i, text[i + 1]].item() for i in range(len(text) - 1)][-len(answer) :]
        assert row["logprob"] == pytest.approx(sum(chances), abs=1e-4)
        assert row["n_scored"] == len(answer)


def test_a_sweep_runs_all_points_in_one_run_and_ends_in_one_table(
    airflow: AirflowSandbox, runs: dict[str, Run], models: dict[str, Path]
) -> None:
    run = runs[SWEEP]
    run.succeeds()
    result = storage.read_json(join(run.output.uri, "sweep.json"), SweepResult)
    assert [point.settings["model.path"].split("/")[-2] for point in result.points] == [
        "docstring-kind",
        "other-kind",
    ]
    for point, name in zip(result.points, ("docstring-kind", "other-kind"), strict=True):
        out = read_output(Output(point.output))
        model = models[name]
        sample = sample_rows(ROWS, 0)
        logits = class_logits(model, [_ids(model, row.text, 128) for row in sample])
        labels = [KINDS[i] for i in logits.argmax(1).tolist()]
        assert [row["label"] for row in out] == labels
        right = sum(label == row.kind for label, row in zip(labels, sample, strict=True))
        assert point.metrics["accuracy"].value == pytest.approx(right / ROWS)
        assert point.cost is not None
    assert len(run.tasks("tokenize")) == 1, "both points have the same tokens"
    assert len(run.tasks("plan")) == len(run.tasks("finish_point")) == 2
    events = airflow.api().get("/assets/events", source_dag_id=SWEEP)["asset_events"]
    assert [event["uri"] for event in events] == ["s3://evaluation/kinds-by-limit"]
    login = httpx.post(f"{airflow.url}/auth/token", json={"username": USER, "password": airflow.password})
    page = httpx.get(
        f"{airflow.url}/staticjob/report",
        params={"dag_id": SWEEP, "run_id": run.run_id},
        cookies={"_token": login.json()["access_token"]},
    )
    assert "<h1>kinds_by_limit</h1>" in page.text
