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
SPEARMAN = Metric(metric="spearman", gold="gold", group_by="q")


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
    value = evaluate(SPEARMAN, rows)
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
    with pytest.raises(ValidationError, match="not a regular expression"):
        Metric(metric="exact_match", gold="gold", pattern="(")
    with pytest.raises(DataError, match="no column 'label'; see input"):
        evaluate(Metric(metric="accuracy", gold="gold"), [{"gold": "a"}])
    with pytest.raises(DataError, match="nothing to count; it needs rows in which gold is not null"):
        evaluate(Metric(metric="accuracy", gold="gold"), [{"gold": None, "label": "a"}])
    with pytest.raises(DataError, match="needs pairs of rows of one q, both with gold and a result"):
        evaluate(SPEARMAN, [{"q": 0, "embedding": [1.0], "gold": 1.0}])
    with pytest.raises(DataError, match="'good' in column 'gold' is not a number"):
        evaluate(Metric(metric="mrr", gold="gold", group_by="q"), [{"q": 0, "score": 0.1, "gold": "good"}])


@pytest.mark.parametrize(("zero", "one"), [("0", "1"), ("false", "True"), (0.0, 1.0), (False, True)])
def test_gold_that_csv_spells_as_text_counts_as_the_number(zero: Any, one: Any) -> None:
    rows = [
        {"q": 0, "gold": gold, "score": value, "logprob": value, "n_scored": 1, "reward": value}
        for gold, value in ((one, -3.0), (zero, -1.0), (zero, -2.0), (None, -0.5), (float("nan"), -0.5))
    ]
    for name, expected in (
        ("choice_accuracy", 0.0), ("mrr", 1 / 3), ("ndcg", 0.5), ("pairwise_accuracy", 0.0),
    ):  # fmt: skip
        assert evaluate(Metric(metric=name, gold="gold", group_by="q"), rows).value == pytest.approx(expected)
    tens = [{"q": 0, "gold": "10", "reward": 2.0}, {"q": 0, "gold": "9", "reward": 1.0}]
    assert evaluate(Metric(metric="pairwise_accuracy", gold="gold", group_by="q"), tens).value == 1.0


@pytest.mark.parametrize("name", ["choice_accuracy", "choice_accuracy_per_token", "ndcg", "mrr"])
def test_a_group_without_any_result_is_wrong_however_its_rows_are_ordered(name: str) -> None:
    rows = [{"q": 0, "gold": g, "score": None, "logprob": None, "n_scored": None} for g in (1, 0)]
    assert evaluate(Metric(metric=name, gold="gold", group_by="q"), rows).value == 0.0


def test_documents_of_equal_scores_gain_nothing_by_their_order_in_the_input() -> None:
    golds = [1, 0, 0, 1, 0]
    for order in (golds, golds[::-1]):
        rows = [{"q": 0, "gold": gold, "score": 1.0} for gold in order]
        ndcg = evaluate(Metric(metric="ndcg", gold="gold", group_by="q"), rows).value
        assert ndcg == pytest.approx(ndcg_score([order], [[1.0] * 5]))
        mrr = evaluate(Metric(metric="mrr", gold="gold", group_by="q"), rows).value
        # The first of two marked among five stands first in 4 of 10 pairs of places, second in 3, …
        assert mrr == pytest.approx(0.4 + 0.3 / 2 + 0.2 / 3 + 0.1 / 4)


def test_a_perfect_classifier_is_perfect_in_every_resample() -> None:
    rows = [{"kind": kind, "label": kind} for kind in ["a"] * 9 + ["b"]]
    value = evaluate(Metric(metric="macro_f1", gold="kind"), rows)
    assert (value.low, value.value, value.high) == (1.0, 1.0, 1.0)


def test_no_label_is_not_the_label_none() -> None:
    rows = [{"kind": "None", "label": None}, {"kind": "a", "label": "a"}]
    assert evaluate(Metric(metric="macro_f1", gold="kind"), rows).value == 0.5


def test_gold_labels_the_model_never_says_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"kind": 0, "label": "LABEL_0"}, {"kind": 1, "label": "LABEL_1"}]
    assert evaluate(Metric(metric="accuracy", gold="kind"), rows).value == 0.0
    assert "column 'kind' has 0, 1, the model says LABEL_0, LABEL_1" in caplog.text


def test_a_correlation_with_what_is_all_the_same_is_none() -> None:
    for gold in ([1.0, 1.0], [1.0, 2.0]):
        rows = [{"q": q, "embedding": [1.0], "gold": gold[q]} for q in (0, 0, 1, 1)]
        value = evaluate(SPEARMAN, rows)
        assert (value.value, value.low, value.high) == (0.0, 0.0, 0.0)


def test_a_pattern_whose_group_takes_no_part_finds_no_answer() -> None:
    rows = [{"text": "x", "gold": "7"}]
    metric = Metric(metric="exact_match", gold="gold", pattern=r"(\d+)|x")
    assert evaluate(metric, rows).value == 0.0
