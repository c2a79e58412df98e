"""Every task from input files to output files, with models and tokenizers of a few thousand weights."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from small_jobs import Planned, job, planned, read_output
from tiny_encoders import rows
from tiny_encoders import save as save_encoder
from tiny_tasks import (
    LABELS,
    class_logits,
    save_causal,
    save_classifier,
    save_tokenizer,
    token_logprobs,
    words,
)

from staticjob import steps, storage
from staticjob.chunk import ChunkRun, Worker
from staticjob.engine.shape import Shape
from staticjob.engine.static_engine import StaticEngine
from staticjob.errors import ConfigError
from staticjob.running.progress import Reporter
from staticjob.running.watch import StopFlag
from staticjob.verify import verify

CLS, SEP = 2, 3
TEXTS = {"generate": {"max_new_tokens": 4}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "model"


def start(base: Path, task: str, columns: dict[str, list[Any]], **sections: Any) -> Planned:
    """Plan a job over one file; columns that are not the task's roles are kept."""
    ids = list(range(len(next(iter(columns.values())))))
    kept = [name for name in columns if name == "group"]
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": ids, **columns}), sink)
    storage.put(f"{base}/in/p.parquet", sink.getvalue())
    settings: dict[str, Any] = {
        "model": {"path": str(base / "model"), "device": "cpu"},
        "input": {"columns": {name: name for name in columns if name not in kept}, "keep": ["id", *kept]},
        "limits": {"max_length": 40, "max_error_rate": 1.0},
        "batching": {"token_budget": 64, "ladder": [8, 40]},
    }
    return planned(job(str(base), **{**settings, "task": task, **sections}))


def finish(made: Planned) -> list[dict[str, Any]]:
    """Run, merge, and read the output; every row has the bits that running it again gives."""
    config = made.prepared.config
    shapes = [Shape(rung.length, rung.batch) for rung in made.plan.rungs]
    engine = StaticEngine(Path(config.model.path), config, shapes)
    worker = Worker(engine, StopFlag(), Reporter(made.plan, [chunk.id for chunk in made.plan.chunks]))
    for chunk in made.plan.chunks:
        ChunkRun(made.work, made.prepared.files, chunk, worker).run(0.0)
    steps.merge(made.work, made.prepared, made.plan)
    assert verify(made.work, made.prepared, made.plan, 100, 0).bit_equal
    return read_output(made.output)


def results(base: Path, task: str, columns: dict[str, list[Any]], **sections: Any) -> list[dict[str, Any]]:
    return finish(start(base, task, columns, **sections))


def schema(base: Path) -> pa.Schema:
    return pq.read_schema(io.BytesIO(storage.read(f"{base}/out/p.parquet")))


def test_pairs_are_classified_with_their_token_types(tmp_path: Path, model: Path) -> None:
    """T5: a BERT pair has types 0 0 0 1 1; what is cut is cut before they are given."""
    save_tokenizer(save_classifier("bert", model))
    firsts, seconds = rows([1, 9, 3, 30]), rows([1, 4, 17, 60], seed=1)
    out = results(
        tmp_path, "classify", {"text": list(map(words, firsts)), "text_pair": list(map(words, seconds))}
    )
    kept = [(a, b) for a, b in zip(firsts, seconds, strict=True)]
    kept[3] = firsts[3][:18], seconds[3][:19]
    ids = [[CLS, *a, SEP, *b, SEP] for a, b in kept]
    types = [[0] * (len(a) + 2) + [1] * (len(b) + 1) for a, b in kept]
    expected = class_logits(model, ids, types).softmax(-1).numpy()
    np.testing.assert_allclose([r["scores"] for r in out], expected, rtol=2e-5, atol=1e-7)
    assert [r["label"] for r in out] == [LABELS[i] for i in expected.argmax(1)]
    assert [r["n_tokens"] for r in out] == [5, 16, 23, 40]
    assert [r["status"] for r in out] == ["ok", "ok", "ok", "truncated"]


def test_a_missing_side_of_a_pair_is_no_text(tmp_path: Path, model: Path) -> None:
    """T5: never the word None."""
    save_tokenizer(save_classifier("bert", model))
    out = results(
        tmp_path, "classify", {"text": ["w5", None, "w6", "w7"], "text_pair": ["w5", "w6", None, ""]}
    )
    assert [r["status"] for r in out] == ["ok", "null", "null", "empty"]
    assert out[2]["reason"] == "no value in text_pair"
    assert out[1]["label"] is out[1]["scores"] is None


def test_a_token_the_model_has_no_vector_for_is_an_error_of_its_row(tmp_path: Path, model: Path) -> None:
    save_tokenizer(save_classifier("bert", model, vocab_size=90))
    out = results(tmp_path, "classify", {"text": ["w5 w89", "w5 w90 w7", "w9"]})
    assert [r["status"] for r in out] == ["ok", "error", "ok"]
    assert out[1]["reason"] == "its token 90 is none of the model's 90: is the tokenizer another's?"


def test_independent_labels_each_have_a_probability(tmp_path: Path, model: Path) -> None:
    save_tokenizer(save_classifier("roberta", model, problem_type="multi_label_classification"))
    texts = rows([3, 12, 7])
    out = results(tmp_path, "classify", {"text": list(map(words, texts))})
    expected = class_logits(model, [[CLS, *t, SEP] for t in texts]).sigmoid().numpy()
    np.testing.assert_allclose([r["scores"] for r in out], expected, rtol=2e-5)
    assert expected.sum(1).max() > 1.01


def test_a_reranker_scores_by_its_own_activation_and_ranks_within_groups(tmp_path: Path, model: Path) -> None:
    name = "torch.nn.modules.linear.Identity"
    save_tokenizer(save_classifier("bert", model, ("score",), sentence_transformers={"activation_fn": name}))
    queries, documents = rows([4] * 8), rows([1, 20, 5, 7, 2, 9, 33, 4], seed=1)
    groups = ["b", "a", "b", None, "a", "b", "b", "a"]
    columns = {
        "query": [words(q) for q in queries[:7]] + [None],
        "document": list(map(words, documents)),
        "group": groups,
    }
    out = results(tmp_path, "rerank", columns, rerank={"group_by": "group"})
    ids = [[CLS, *q, SEP, *d, SEP] for q, d in zip(queries, documents, strict=True)][:7]
    types = [[0] * 6 + [1] * (len(i) - 6) for i in ids]
    expected = class_logits(model, ids, types)[:, 0].numpy()
    np.testing.assert_allclose([r["score"] for r in out[:7]], expected, rtol=2e-5, atol=1e-6)
    assert schema(tmp_path).field("score").metadata[b"activation"] == b"identity"
    for group in ("a", "b", None):
        own = [r for r in out[:7] if r["group"] == group]
        best_first = sorted(own, key=lambda r: -r["score"])
        assert [r["rank"] for r in best_first] == list(range(1, len(own) + 1))
    assert out[7]["rank"] is None


@pytest.mark.parametrize(
    ("group_by", "message"),
    [("group", r"'group' holds list<.*>; group by"), ("grup", "no column 'grup'; did you mean 'group'")],
)
def test_groups_that_cannot_be_told_apart_are_refused_by_the_plan(
    group_by: str, message: str, tmp_path: Path, model: Path
) -> None:
    save_tokenizer(save_classifier("bert", model, ("score",)))
    columns = {"query": ["w5"], "document": ["w6"], "group": [["a", "b"]]}
    source = {"columns": {"query": "query", "document": "document"}, "keep": "all"}
    with pytest.raises(ConfigError, match=message):
        start(tmp_path, "rerank", columns, input=source, rerank={"group_by": group_by})


def test_a_long_document_is_cut_and_a_long_query_is_a_row_error(tmp_path: Path, model: Path) -> None:
    save_tokenizer(save_classifier("bert", model, ("score",)))
    query, document = rows([30])[0], rows([60], seed=1)[0]
    columns = {"query": [words(query), words(query * 2)], "document": [words(document), "w5"]}
    cut, refused = results(tmp_path, "rerank", columns)
    ids = [CLS, *query, SEP, *document[:7], SEP]
    expected = class_logits(model, [ids], [[0] * 32 + [1] * 8]).sigmoid()
    assert (cut["status"], cut["n_tokens"]) == ("truncated", 40)
    assert cut["score"] == pytest.approx(float(expected), rel=2e-5)
    assert (refused["status"], refused["score"]) == ("error", None)
    assert refused["reason"] == "query alone fills the 40 tokens of a row"


def test_a_causal_reranker_scores_yes_against_no_after_its_template(tmp_path: Path, model: Path) -> None:
    save_tokenizer(save_causal("qwen3", model), first=True)
    queries, documents = rows([3, 2, 3]), rows([4, 9, 80], seed=1)
    columns = {"query": list(map(words, queries)), "document": list(map(words, documents))}
    template = "w10 {query} w11 {document} w12 w13"
    out = results(tmp_path, "rerank", columns, rerank={"template": template, "yes": "w20", "no": "w21"})
    documents[2] = documents[2][:32]
    ids = [[CLS, 10, *q, 11, *d, 12, 13] for q, d in zip(queries, documents, strict=True)]
    last = torch.stack([t[-1] for t in token_logprobs(model, [[*i, 5] for i in ids])])
    expected = last[:, [20, 21]].softmax(1)[:, 0].numpy()
    np.testing.assert_allclose([r["score"] for r in out], expected, rtol=2e-5)
    assert [r["status"] for r in out] == ["ok", "ok", "truncated"]


def test_a_reward_is_read_at_the_last_token_even_where_padding_is_the_end_token(
    tmp_path: Path, model: Path
) -> None:
    """T3: w9, the end of every message, is the pad token too."""
    save_tokenizer(save_classifier("llama", model, ("reward",), pad_token_id=9, eos_token_id=9), chat=True)
    prompts, responses = rows([2, 9, 4]), rows([5, 1, 11], seed=1)
    columns = {"prompt": list(map(words, prompts)), "response": list(map(words, responses))}
    out = results(tmp_path, "reward", columns)
    ids = [[99, *p, 9, 100, *r, 9] for p, r in zip(prompts, responses, strict=True)]
    # Alone and told that nothing is padding, Hugging Face reads the last token.
    expected = class_logits(model, ids, pad_token_id=None)[:, 0].numpy()
    np.testing.assert_allclose([r["reward"] for r in out], expected, rtol=2e-5, atol=1e-6)
    assert [r["n_tokens"] for r in out] == [len(i) for i in ids]


def test_chats_are_rewarded_like_prompts_with_their_responses(tmp_path: Path, model: Path) -> None:
    save_tokenizer(save_classifier("gpt2", model, ("reward",)), chat=True)
    chat = [{"role": "user", "content": "w5 w6"}, {"role": "assistant", "content": "w7"}]
    chats, pairs = tmp_path / "a", tmp_path / "b"
    for base in (chats, pairs):
        base.mkdir()
        (base / "model").symlink_to(model)
    (one, broken) = results(chats, "reward", {"messages": [chat, [{"role": "user", "content": None}]]})
    (other,) = results(pairs, "reward", {"prompt": ["w5 w6"], "response": ["w7"]})
    assert one["reward"] == other["reward"]
    assert (broken["status"], broken["reason"]) == ("error", "messages: the content of number 0 is not text")


def test_a_continuation_is_scored_given_its_context(tmp_path: Path, model: Path) -> None:
    """T8: all but the last token are fed, and as many positions summed as the continuation has tokens."""
    save_tokenizer(save_causal("llama", model, bos_token_id=2), first=False, plain=True)
    contexts, continuations = rows([4, 1, 12, 60]), rows([3, 5, 1, 6], seed=1)
    columns = {
        "context": [*map(words, contexts), "", "w5"],
        "continuation": [*(f" {words(c)}" for c in continuations), "w5 w6", "  "],
    }
    out = results(tmp_path, "logprob", columns, logprob={"token_logprobs": True})
    contexts[3] = contexts[3][-34:]
    ids = [[*a, *b] for a, b in zip(contexts, continuations, strict=True)] + [[2, 5, 6]]
    counts = [3, 5, 1, 6, 2]
    for row, text, count, own in zip(out, ids, counts, token_logprobs(model, ids), strict=False):
        tokens = own.gather(1, torch.tensor(text[1:])[:, None])[-count:, 0].numpy()
        np.testing.assert_allclose(row["token_logprobs"], tokens, atol=2e-5)
        assert row["logprob"] == pytest.approx(tokens.sum(), abs=1e-4)
        assert (row["n_scored"], row["n_tokens"]) == (count, len(text))
        assert row["perplexity"] == pytest.approx(np.exp(-tokens.mean()), rel=1e-4)
        assert row["is_greedy"] is (own.argmax(1)[-count:].tolist() == text[-count:])
    assert [r["status"] for r in out] == ["ok", "ok", "ok", "truncated", "ok", "empty"]
    assert out[5]["token_logprobs"] is out[5]["n_scored"] is None


def test_a_whole_text_is_scored_from_the_first_token_that_has_one_before_it(
    tmp_path: Path, model: Path
) -> None:
    save_causal("gpt2", model)
    text = rows([9])[0]
    found = {}
    for name, options in (("plain", {"plain": True}), ("first", {"first": True})):
        save_tokenizer(model, **options)
        base = tmp_path / name
        base.mkdir()
        (base / "model").symlink_to(model)
        found[name] = results(base, "logprob", {"text": [words(text), "w5"]})
    assert [r["n_scored"] for r in found["plain"]] == [8, None]
    assert found["plain"][1]["status"] == "empty"
    assert [r["n_scored"] for r in found["first"]] == [9, 1]
    ids = tmp_path / "ids"
    ids.mkdir()
    (ids / "model").symlink_to(model)
    given, refused = results(ids, "logprob", {"token_ids": [[CLS, *text], [5, 999]]})
    assert given["logprob"] == pytest.approx(found["first"][0]["logprob"], abs=1e-5)
    assert refused["reason"] == "token_ids: expected a list of integers below 101"


@pytest.mark.parametrize(
    ("task", "columns", "made", "options", "message"),
    [
        ("classify", {"text"}, "bert", {}, "task classify needs a sequence classifier, .* names BertModel"),
        ("classify", {"text"}, "bare", {}, "does not name its labels"),
        ("classify", {"text"}, "number", {}, "problem_type is regression"),
        ("classify", {"text_pair"}, "classifier", {}, "needs a column for 'text' or 'text' and 'text_pair'"),
        (
            "rerank",
            {"query", "document"},
            "classifier",
            {},
            "gives 3 numbers a row where task rerank needs one",
        ),
        ("rerank", {"query", "document"}, "causal", {}, "task rerank needs a sequence classifier"),
        ("reward", {"messages"}, "number", {}, "no chat template"),
        ("logprob", {"text"}, "classifier", {}, "task logprob needs a causal language model"),
        ("logprob", {"context"}, "causal", {}, "'context' and 'continuation'"),
        ("rerank", {"query"}, "number", {}, "'document' and 'query' or 'documents' and 'query'"),
        ("generate", {"prompt"}, "classifier", TEXTS, "task generate needs a causal language model"),
        ("generate", {"messages"}, "causal", TEXTS, "no chat template"),
        ("rerank", {"query", "document"}, "number", {"rerank": {"group_by": "g"}}, "'g' in input.keep too"),
        (
            "classify",
            {"text"},
            "classifier",
            {"rerank": {"group_by": "id"}},
            "rerank: options of another task than classify",
        ),
        ("rerank", {"query", "document"}, "causal", {"rerank": {"template": "{query}"}}, "{document} once"),
        (
            "rerank",
            {"query", "document"},
            "causal",
            {"rerank": {"template": "{query} {document}"}},
            "'yes' and 'no' are one token of model",
        ),
        ("classify", {"text"}, "unnumbered", {}, "does not name its labels"),
    ],
)
def test_what_does_not_fit_the_task_is_refused_in_one_line(
    task: str,
    columns: set[str],
    made: str,
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
    model: Path,
) -> None:
    if made == "bert":
        save_encoder("bert", model)
    elif made == "causal":
        save_causal("llama", model)
    elif made == "number":
        save_classifier("llama", model, ("number",), problem_type="regression")
    else:
        save_classifier("bert", model)
    if made in ("bare", "unnumbered"):
        settings = json.loads((model / "config.json").read_text())
        del settings["id2label"]
        if made == "unnumbered":
            settings["id2label"] = {"no": "no"}
        (model / "config.json").write_text(json.dumps(settings))
    save_tokenizer(model)
    with pytest.raises(ConfigError, match=message) as error:
        start(tmp_path, task, {name: ["w5"] for name in columns}, **options)
    assert "\n" not in str(error.value)
