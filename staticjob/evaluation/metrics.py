"""Results against gold columns: one number and the interval that chance leaves it.

A metric is a statistic of units (rows, or groups of rows); its interval is the 95% percentile bootstrap
over units (Efron 1979), seeded, so that it is the same every time. A row without a result is wrong; only
a correlation leaves out its pair.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticjob.errors import DataError
from staticjob.evaluation.grid import READS, Metric
from staticjob.evaluation.results import Value

RESAMPLES = 1000
Rows = Sequence[Mapping[str, Any]]
Statistic = Callable[[NDArray[np.int64]], float]


def evaluate(metric: Metric, rows: Rows) -> Value:
    """The metric over output rows; DataError when a column is not there or nothing can be counted."""
    result = READS[metric.metric]
    for column in filter(None, (metric.gold, metric.group_by, result)):
        if rows and column not in rows[0]:
            raise DataError(
                f"metric {metric.name}: the output has no column {column!r}; keep it in input.keep, or use a "
                f"metric of another task than the one that gives {result}"
            )
    statistic, units = _STATISTICS[metric.metric](metric, rows)
    if not units:
        raise DataError(f"metric {metric.name}: no rows to count (is {metric.gold!r} all null?)")
    rng = np.random.default_rng(0)
    draws = [statistic(rng.integers(0, units, units)) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return Value(value=statistic(np.arange(units)), low=float(low), high=float(high), units=units)


def _mean(values: Sequence[float]) -> tuple[Statistic, int]:
    array = np.array(values, np.float64)
    return (lambda units: float(array[units].mean())), len(array)


def _groups(metric: Metric, rows: Rows) -> list[list[Mapping[str, Any]]]:
    """Rows that have a gold value, by group."""
    groups = defaultdict(list)
    for row in rows:
        if row[metric.gold] is not None:
            groups[row[metric.group_by or ""]].append(row)
    return list(groups.values())


def _known(metric: Metric, rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if row[metric.gold] is not None]


def _accuracy(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    return _mean([row["label"] == str(row[metric.gold]) for row in _known(metric, rows)])


def _macro_f1(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """Mean over the gold labels of F1 = 2 TP / (2 TP + FP + FN)."""
    known = _known(metric, rows)
    gold = np.array([str(row[metric.gold]) for row in known])
    found = np.array([str(row["label"]) for row in known])
    labels = np.unique(gold)

    def statistic(units: NDArray[np.int64]) -> float:
        own, said = gold[units], found[units]
        hits = (own == said)[:, None] & (own[:, None] == labels)
        sums = (own[:, None] == labels).sum(0) + (said[:, None] == labels).sum(0)
        return float((2 * hits.sum(0) / np.maximum(sums, 1)).mean())

    return statistic, len(known)


def _choice(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """Whether the likeliest choice of a question is one that gold marks."""
    per_token = metric.metric == "choice_accuracy_per_token"

    def likelihood(row: Mapping[str, Any]) -> float:
        if row["logprob"] is None:
            return -np.inf
        return float(row["logprob"]) / (row["n_scored"] if per_token else 1)

    return _mean([bool(max(group, key=likelihood)[metric.gold]) for group in _groups(metric, rows)])


def _best_first(group: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Documents by score; those without one come last."""
    return sorted(group, key=lambda row: -np.inf if row["score"] is None else row["score"], reverse=True)


def _ndcg(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """DCG = sum of gain / log2(1 + rank) over the first k, over its best possible (Järvelin 2002)."""
    discounts = 1 / np.log2(np.arange(2, metric.k + 2))
    values = []
    for group in _groups(metric, rows):
        gains = np.array([float(row[metric.gold]) for row in _best_first(group)])
        best = np.sort(gains)[::-1][: metric.k]
        if best.any():
            values.append((gains[: metric.k] @ discounts[: len(best)]) / (best @ discounts[: len(best)]))
    return _mean(values)


def _mrr(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """1 / rank of the first document of a query that gold marks; 0 where none is marked."""
    values = []
    for group in _groups(metric, rows):
        marked = (rank for rank, row in enumerate(_best_first(group), 1) if row[metric.gold])
        rank = next(marked, None)
        values.append(1 / rank if rank else 0.0)
    return _mean(values)


def _spearman(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """Rank correlation of the cosine of the two rows of a group with the gold value of the first."""
    from scipy.stats import spearmanr  # type: ignore[import-untyped]

    pairs = [g for g in _groups(metric, rows) if len(g) == 2 and all(r["embedding"] is not None for r in g)]
    vectors = np.array([[row["embedding"] for row in pair] for pair in pairs], np.float64).reshape(
        len(pairs), 2, -1
    )
    norms = np.linalg.norm(vectors, axis=2).prod(axis=1)
    cosines = (vectors[:, 0] * vectors[:, 1]).sum(axis=1) / norms
    gold = np.array([float(pair[0][metric.gold]) for pair in pairs])
    return (lambda units: float(spearmanr(cosines[units], gold[units]).statistic)), len(pairs)


def _pairwise(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """Of a group's pairs with different gold, the share in which the better one has the higher reward."""
    values = []
    for group in _groups(metric, rows):
        right = [
            a["reward"] is not None and b["reward"] is not None and a["reward"] > b["reward"]
            for a in group
            for b in group
            if a[metric.gold] > b[metric.gold]
        ]
        if right:
            values.append(float(np.mean(right)))
    return _mean(values)


def _exact_match(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    def answer(text: Any) -> str | None:
        if text is None or metric.pattern is None:
            return None if text is None else str(text).strip()
        matches = list(re.finditer(metric.pattern, str(text)))
        return matches[-1][min(1, matches[-1].re.groups)].strip() if matches else None

    known = _known(metric, rows)
    return _mean(
        [(said := answer(row["text"])) is not None and said == answer(row[metric.gold]) for row in known]
    )


_STATISTICS: dict[str, Callable[[Metric, Rows], tuple[Statistic, int]]] = {
    "accuracy": _accuracy,
    "macro_f1": _macro_f1,
    "choice_accuracy": _choice,
    "choice_accuracy_per_token": _choice,
    "ndcg": _ndcg,
    "mrr": _mrr,
    "spearman": _spearman,
    "pairwise_accuracy": _pairwise,
    "exact_match": _exact_match,
}
