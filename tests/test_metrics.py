"""Metrics against gold columns are those of the reference libraries, by hand where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import spearmanr
from sklearn.metrics import f1_score, ndcg_score

from staticjob.errors import DataError
from staticjob.evaluation.metrics import Metric, evaluate

RNG = np.random.default_rng(0)
KINDS = ["class", "function", "method"]


def labelled(n: int) -> list[dict[str, Any]]:
    gold = RNG.choice(KINDS, n)
    said = np.where(RNG.random(n) < 0.7, gold, RNG.choice(KINDS, n))
    return [{"kind": str(g), "label": str(s)} for g, s in zip(gold, said, strict=True)]


def grouped(n: int, size: int, result: str, gold: Any) -> list[dict[str, Any]]:
    return [{"q": i // size, result: float(RNG.normal()), "gold": gold(i)} for i in range(n * size)]


def test_accuracy_counts_rows_without_a_result_as_wrong_and_rows_without_gold_not_at_all() -> None:
    rows = [{"kind": "a", "label": "a"}, {"kind": "b", "label": None}, {"kind": None, "label": "a"}]
    value = evaluate(Metric(metric="accuracy", gold="kind"), rows)
    assert (value.value, value.units) == (0.5, 2)


def test_macro_f1_is_scikit_learns() -> None:
    rows = labelled(200)
    value = evaluate(Metric(metric="macro_f1", gold="kind"), rows)
    expected = f1_score([r["kind"] for r in rows], [r["label"] for r in rows], average="macro")
    assert value.value == pytest.approx(expected)
    assert value.low < value.value < value.high


def test_ndcg_is_scikit_learns_over_queries_that_have_something_to_find() -> None:
    rows = grouped(30, 8, "score", lambda i: int(RNG.integers(0, 3)) if i >= 8 else 0)
    value = evaluate(Metric(metric="ndcg", gold="gold", group_by="q", k=5), rows)
    queries = [[r for r in rows if r["q"] == q] for q in range(1, 30)]
    expected = [ndcg_score([[r["gold"] for r in g]], [[r["score"] for r in g]], k=5) for g in queries]
    assert value.value == pytest.approx(np.mean(expected))
    assert value.units == 29


def test_a_reciprocal_rank_is_of_the_first_marked_document() -> None:
    rows = [
        {"q": 0, "score": 0.1, "gold": 1}, {"q": 0, "score": 0.9, "gold": 0},
        {"q": 0, "score": None, "gold": 1}, {"q": 1, "score": 0.3, "gold": 1},
        {"q": 2, "score": 0.3, "gold": 0},
    ]  # fmt: skip
    assert evaluate(Metric(metric="mrr", gold="gold", group_by="q"), rows).value == pytest.approx(0.5)


def test_the_likeliest_choice_counts_as_a_whole_or_per_token() -> None:
    rows = [
        {"q": 0, "logprob": -6.0, "n_scored": 6, "gold": 1},
        {"q": 0, "logprob": -4.0, "n_scored": 2, "gold": 0},
        {"q": 1, "logprob": -1.0, "n_scored": 1, "gold": 1},
        {"q": 1, "logprob": None, "n_scored": None, "gold": 0},
    ]
    for name, expected in (("choice_accuracy", 0.5), ("choice_accuracy_per_token", 1.0)):
        assert evaluate(Metric(metric=name, gold="gold", group_by="q"), rows).value == expected


def test_spearman_is_scipys_of_the_cosines_of_pairs() -> None:
    vectors = RNG.normal(size=(40, 2, 8))
    gold = RNG.normal(size=40)
    rows = [{"q": i, "embedding": list(v), "gold": gold[i]} for i, pair in enumerate(vectors) for v in pair]
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in vectors]
    value = evaluate(Metric(metric="spearman", gold="gold", group_by="q"), rows)
    assert value.value == pytest.approx(spearmanr(cosines, gold).statistic)


def test_the_better_answer_should_have_the_higher_reward() -> None:
    rows = [
        {"q": 0, "reward": 2.0, "gold": 1}, {"q": 0, "reward": 1.0, "gold": 0},
        {"q": 1, "reward": 1.0, "gold": 1}, {"q": 1, "reward": 1.0, "gold": 0},
    ]  # fmt: skip
    assert evaluate(Metric(metric="pairwise_accuracy", gold="gold", group_by="q"), rows).value == 0.5


def test_an_answer_matches_exactly_by_its_last_match() -> None:
    rows = [{"text": "3 and 4 is #### 7", "gold": "so #### 7"}, {"text": "no idea", "gold": "#### 7"}]
    metric = Metric(metric="exact_match", gold="gold", pattern=r"#### (\d+)")
    assert evaluate(metric, rows).value == 0.5


def test_a_metric_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValidationError, match="ndcg needs group_by"):
        Metric(metric="ndcg", gold="gold")
    with pytest.raises(DataError, match="no column 'label'; keep it"):
        evaluate(Metric(metric="accuracy", gold="gold"), [{"gold": "a"}])
    with pytest.raises(DataError, match="no rows to count"):
        evaluate(Metric(metric="accuracy", gold="gold"), [{"gold": None, "label": "a"}])
