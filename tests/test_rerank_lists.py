"""A query with a list of documents is one row: scored one by one, ranked in itself, published as lists."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_tasks_run import CLS, SEP, finish, results, schema, start
from tiny_encoders import rows
from tiny_tasks import class_logits, save_causal, save_classifier, save_tokenizer, token_logprobs, words

from staticjob import dataset, steps, storage
from staticjob.errors import ConfigError, DataError
from staticjob.finish import finish as finish_job
from staticjob.records.output import Manifest
from staticjob.records.status import Status

QUERIES = rows([4] * 5)
# Of every length, in no order, so that the documents of a row fall to both rungs and to several chunks.
LENGTHS = [[20, 1, 33], [5], [2, 30, 9, 4], [], [7, 60]]
DOCUMENTS = [rows(lengths, seed=i) for i, lengths in enumerate(LENGTHS)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_tokenizer(save_classifier("bert", tmp_path / "model", ("score",)))
    return tmp_path / "model"


def columns() -> dict[str, list[Any]]:
    return {
        "query": list(map(words, QUERIES)),
        "documents": [list(map(words, documents)) for documents in DOCUMENTS],
    }


def expected_scores(model: Path, queries: list[list[int]], lists: list[list[list[int]]]) -> list[list[float]]:
    """Every pair alone by Hugging Face; of a document is kept what fits 40 tokens."""
    found = []
    for query, documents in zip(queries, lists, strict=True):
        pairs = [([CLS, *query, SEP], [*document[: 37 - len(query)], SEP]) for document in documents]
        types = [[0] * len(a) + [1] * len(b) for a, b in pairs]
        ids = [a + b for a, b in pairs]
        found.append(class_logits(model, ids, types).sigmoid()[:, 0].tolist() if ids else [])
    return found


def test_every_row_has_the_scores_and_ranks_of_its_own_documents_in_their_order(
    tmp_path: Path, model: Path
) -> None:
    made = start(
        tmp_path, "rerank", columns(), batching={"token_budget": 64, "ladder": [8, 40], "chunk_slots": 64}
    )
    assert len(made.plan.chunks) > 4
    assert (made.plan.items, made.plan.file_rows) == (11, (5,))
    out = finish(made)
    for row, expected in zip(out, expected_scores(model, QUERIES, DOCUMENTS), strict=True):
        np.testing.assert_allclose(row["scores"], expected, rtol=2e-5)
        best_first = sorted(range(len(expected)), key=lambda i: -expected[i])
        assert [row["ranks"][i] for i in best_first] == list(range(1, len(expected) + 1))
    assert [r["status"] for r in out] == ["ok", "ok", "ok", "empty", "truncated"]
    assert [r["reason"] for r in out] == [None, None, None, "no documents", "document 1: cut to 40 tokens"]
    assert [r["n_tokens"] for r in out] == [75, 12, 73, 0, 54]
    assert [r["engine"] for r in out] == ["static", "static", "static", None, "static"]
    assert out[3]["scores"] == out[3]["ranks"] == []
    assert schema(tmp_path).field("scores").metadata[b"activation"] == b"sigmoid"


def test_manifest_and_report_count_rows_and_the_ledger_documents(tmp_path: Path, model: Path) -> None:
    made = start(tmp_path, "rerank", columns())
    finish(made)
    manifest, _ = finish_job(made.work, made.prepared, made.plan)
    assert manifest.rows == 5
    assert manifest.statuses == {Status.OK: 3, Status.TRUNCATED: 1, Status.EMPTY: 1}
    assert manifest.ledger.useful == sum([75, 12, 73, 54])
    assert storage.read_json(made.output.manifest, Manifest) == manifest
    steps.report(made.work, made.prepared, made.plan)
    told = json.loads(storage.read(made.output.report_json))
    assert (told["rows"], told["items"], told["rows_pending"]) == (5, 11, 0)


def test_what_is_wrong_with_a_row_or_with_a_document_is_told_apart(tmp_path: Path, model: Path) -> None:
    good = words(rows([3])[0])
    out = results(
        tmp_path,
        "rerank",
        {
            "query": [good, None, "", words(rows([50])[0]), good, good, good],
            "documents": [[good, None, "", good], [good], [good], [good, good], None, [None, ""], [good]],
        },
    )
    assert [r["status"] for r in out] == ["ok", "null", "empty", "error", "null", "null", "ok"]
    assert [s is None for s in out[0]["scores"]] == [False, True, True, False]
    assert out[0]["ranks"] == [1, None, None, 2]
    assert out[3]["reason"] == "query alone fills the 40 tokens of a row"
    assert [r["scores"] is r["ranks"] is None for r in out] == [False, True, True, True, True, True, False]
    assert out[5]["reason"] == "no value in document"


def test_a_document_in_error_makes_its_row_one_where_all_others_are_blank_too(
    tmp_path: Path, model: Path
) -> None:
    limits = {"max_length": 40, "overflow": "refuse"}
    documents = [["", words(rows([50])[0])], [None, "w5", ""], [None, "w95"]]
    save_tokenizer(save_classifier("bert", model, ("score",), vocab_size=90))
    out = results(tmp_path, "rerank", {"query": ["w9"] * 3, "documents": documents}, limits=limits)
    assert [r["status"] for r in out] == ["too_long", "ok", "error"]
    assert [r["scores"] is None for r in out] == [True, False, True]
    assert out[0]["reason"] == "document 1: more than 40 tokens"
    assert out[2]["reason"].startswith("document 1: its token 95 is none of")


def test_a_document_that_is_refused_refuses_its_row(tmp_path: Path, model: Path) -> None:
    limits = {"max_length": 40, "overflow": "refuse"}
    out = results(tmp_path, "rerank", columns(), limits=limits)
    assert [r["status"] for r in out] == ["ok", "ok", "ok", "empty", "too_long"]
    assert out[4]["reason"] == "document 1: more than 40 tokens"
    assert out[4]["scores"] is None


def test_documents_written_as_json_are_read_and_what_is_no_list_of_texts_is_a_row_error(
    tmp_path: Path, model: Path
) -> None:
    lists = [json.dumps(["w5", "w6 w7"]), "[5]", '{"a": "w5"}', "w5"]
    out = results(tmp_path, "rerank", {"query": ["w9"] * 4, "documents": lists})
    assert [r["status"] for r in out] == ["ok", "error", "error", "error"]
    assert len(out[0]["scores"]) == 2
    assert out[1]["reason"] == out[2]["reason"] == "documents: expected a list of texts"
    assert out[3]["reason"].startswith("column 'documents' is not JSON")


def test_documents_that_are_not_utf8_are_an_error_of_their_row(tmp_path: Path, model: Path) -> None:
    data = pa.py_buffer(b"w5\xffw6")
    texts = pa.StringArray.from_buffers(3, pa.py_buffer(np.array([0, 2, 3, 5], np.int32)), data)
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], texts)
    out = results(tmp_path, "rerank", {"query": ["w9"] * 3, "documents": lists})
    assert [r["status"] for r in out] == ["ok", "error", "ok"]
    assert out[1]["reason"] == "column 'documents' is not UTF-8 (byte 0xff at offset 0)"


def test_rows_of_a_file_that_several_splits_read_find_their_documents(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "plan_splits", partial(dataset.plan_splits, target_bytes=1))
    lists = [rows([1 + i % 7] * (i % 4), seed=i) for i in range(40)]
    texts = [list(map(words, documents)) for documents in lists]
    table = pa.table({"id": range(40), "query": ["w9"] * 40, "documents": texts})
    for name, part in (("a", table.slice(0, 25)), ("b", table.slice(25))):
        sink = io.BytesIO()
        pq.write_table(part, sink, row_group_size=4)
        storage.put(f"{tmp_path}/in/{name}.parquet", sink.getvalue())
    made = start(tmp_path, "rerank", {"query": ["w9"], "documents": [[]]})
    assert len(made.prepared.splits) > 3 == len(made.prepared.files)
    expected = expected_scores(model, [[9]] * 40, lists)
    for row, scores in zip(finish(made), [*expected, []], strict=True):
        np.testing.assert_allclose(row["scores"], scores, rtol=2e-5)


def test_a_file_without_rows_has_an_output_without_rows(tmp_path: Path, model: Path) -> None:
    made = start(
        tmp_path,
        "rerank",
        {"query": [], "documents": []},
        input={"columns": {"query": "query", "documents": "documents"}, "keep": []},
    )
    assert finish(made) == []
    assert schema(tmp_path).names[:2] == ["scores", "ranks"]


def test_a_causal_reranker_scores_lists_too(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_tokenizer(save_causal("qwen3", model), first=True)
    template = "w10 {query} w11 {document} w12 w13"
    options = {"template": template, "yes": "w20", "no": "w21"}
    (row,) = results(tmp_path, "rerank", {"query": ["w4"], "documents": [["w5 w6", "w7"]]}, rerank=options)
    ids = [[CLS, 10, 4, 11, 5, 6, 12, 13, 5], [CLS, 10, 4, 11, 7, 12, 13, 5]]
    expected = [t[-1][[20, 21]].softmax(0)[0].item() for t in token_logprobs(model, ids)]
    np.testing.assert_allclose(row["scores"], expected, rtol=2e-5)


def test_a_lost_or_doubled_document_is_noticed(tmp_path: Path, model: Path) -> None:
    made = start(tmp_path, "rerank", columns())
    finish(made)
    counts = np.frombuffer(storage.read(made.work.items("s00000")), "<i4").copy()
    counts[0] += 1
    storage.put(made.work.items("s00000"), counts.tobytes())
    storage.delete([made.work.merge(group.id) for group in made.plan.groups])
    with pytest.raises(DataError, match=r"1 rows missing \(p.parquet row 0\)"):
        steps.merge(made.work, made.prepared, made.plan)
    counts[:] = 1
    storage.put(made.work.items("s00000"), counts.tobytes())
    with pytest.raises(DataError, match="element 1, of input file 0, which the plan does not have"):
        steps.merge(made.work, made.prepared, made.plan)


def test_lists_are_ranked_in_themselves_and_take_no_groups(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ConfigError, match="a list of documents is ranked in itself"):
        start(tmp_path, "rerank", columns(), rerank={"group_by": "id"})
