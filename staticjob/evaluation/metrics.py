"""Results against gold columns: one number and the interval that chance leaves it.

A metric is a statistic of units (rows, or groups of rows); its interval is the 95% percentile bootstrap
over units (Efron 1979), seeded, so that it is the same every time. A row without a result is wrong; only
a correlation leaves out its pair. Gold that counts as a number may be spelled as text, as CSV does.
"""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticjob.errors import DataError
from staticjob.evaluation.grid import READS, Metric
from staticjob.evaluation.results import Value

log = logging.getLogger(__name__)

RESAMPLES = 1000
SHOWN_LABELS = 5
SPELLED = {"true": 1.0, "false": 0.0}
Rows = Sequence[Mapping[str, Any]]
Statistic = Callable[[NDArray[np.int64]], float]


def evaluate(metric: Metric, rows: Rows) -> Value:
    """The metric over output rows; DataError when a column is not there or nothing can be counted."""
    for column in filter(None, (metric.gold, metric.group_by, READS[metric.metric].column)):
        if rows and column not in rows[0]:
            raise DataError(f"metric {metric.name}: the output has no column {column!r}; see input.keep")
    statistic, units = _STATISTICS[metric.metric](metric, rows)
    if not units:
        raise DataError(f"metric {metric.name}: nothing to count; it needs {_needs(metric)}")
    rng = np.random.default_rng(0)
    draws = [statistic(rng.integers(0, units, units)) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return Value(value=statistic(np.arange(units)), low=float(low), high=float(high), units=units)


def _mean(values: Sequence[float]) -> tuple[Statistic, int]:
    array = np.array(values, np.float64)
    return (lambda units: float(array[units].mean())), len(array)


def _needs(metric: Metric) -> str:
    """What there must be for a metric to count a unit."""
    groups = {
        "ndcg": f"rows of one {metric.group_by} of which {metric.gold} is above 0",
        "spearman": f"pairs of rows of one {metric.group_by}, both with {metric.gold} and a result",
        "pairwise_accuracy": f"rows of one {metric.group_by} that differ in {metric.gold}",
    }
    return groups.get(metric.metric, f"rows in which {metric.gold} is not null")


def _groups(metric: Metric, rows: Rows) -> list[list[Mapping[str, Any]]]:
    """Rows that have a gold value, by group."""
    groups = defaultdict(list)
    for row in _known(metric, rows):
        groups[repr(row[metric.group_by or ""])].append(row)
    return list(groups.values())


def _known(metric: Metric, rows: Rows) -> list[Mapping[str, Any]]:
    """Rows that have a gold value; what is not a number (NaN) is none."""
    return [row for row in rows if row[metric.gold] is not None and row[metric.gold] == row[metric.gold]]


def _number(metric: Metric, row: Mapping[str, Any]) -> float:
    """A row's gold value; DataError for text that spells no number, and for anything else."""
    value = row[metric.gold]
    try:
        spelled = SPELLED.get(str(value).lower())
        return float(value) if spelled is None else spelled
    except (TypeError, ValueError):
        raise DataError(
            f"metric {metric.name}: {value!r} in column {metric.gold!r} is not a number; give numbers, or "
            "true and false"
        ) from None


def _labelled(metric: Metric, rows: Rows) -> tuple[list[str], list[str | None]]:
    """Gold and found labels of the rows that have a gold one."""
    known = _known(metric, rows)
    gold, found = [str(row[metric.gold]) for row in known], [row["label"] for row in known]
    said = {label for label in found if label is not None}
    if said and said.isdisjoint(gold):
        log.warning(
            "warning: metric %s: column %r has %s, the model says %s; gold labels are the model's own names",
            metric.name, metric.gold, *(", ".join(sorted(own)[:SHOWN_LABELS]) for own in (set(gold), said)),
        )  # fmt: skip
    return gold, found


def _accuracy(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    return _mean([own == said for own, said in zip(*_labelled(metric, rows), strict=True)])


def _macro_f1(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """Mean over the gold labels, of the units that are drawn, of F1 = 2 TP / (2 TP + FP + FN)."""
    known, answers = _labelled(metric, rows)
    labels, gold = np.unique(known, return_inverse=True)
    number = {str(label): i for i, label in enumerate(labels)}
    found = np.array([-1 if said is None else number.get(said, -1) for said in answers])

    def statistic(units: NDArray[np.int64]) -> float:
        own, said = gold[units], found[units]
        actual = np.bincount(own, minlength=len(labels))
        sums = actual + np.bincount(said[said >= 0], minlength=len(labels))
        hits = np.bincount(own[own == said], minlength=len(labels))
        return float((2 * hits[actual > 0] / sums[actual > 0]).mean())

    return statistic, len(known)


def _choice(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """Whether the likeliest choice of a question is one that gold marks."""
    per_token = metric.metric == "choice_accuracy_per_token"

    def likelihood(row: Mapping[str, Any]) -> float:
        if row["logprob"] is None:
            return -np.inf
        return float(row["logprob"]) / (row["n_scored"] if per_token else 1)

    def right(group: Rows) -> bool:
        likeliest = max(group, key=likelihood)
        return likeliest["logprob"] is not None and _number(metric, likeliest) != 0

    return _mean([right(group) for group in _groups(metric, rows)])


def _ties(metric: Metric, group: Rows) -> list[list[float]]:
    """Gold of the documents that have a score: lists of those with equal scores, best first."""
    ties = defaultdict(list)
    for row in group:
        if row["score"] is not None:
            ties[row["score"]].append(_number(metric, row))
    return [ties[score] for score in sorted(ties, reverse=True)]


def _ndcg(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """DCG = sum of gain / log2(1 + rank) over the first k, over its best possible (Järvelin 2002).

    Of documents with equal scores each has their mean gain (McSherry and Najork 2008).
    """
    discounts = 1 / np.log2(np.arange(2, metric.k + 2))

    def dcg(gains: Sequence[float]) -> float:
        return float(np.dot(gains[: metric.k], discounts[: len(gains)]))

    values = []
    for group in _groups(metric, rows):
        best = dcg(sorted((_number(metric, row) for row in group), reverse=True))
        if best > 0:
            ties = _ties(metric, group)
            values.append(dcg([float(np.mean(tie)) for tie in ties for _ in tie]) / best)
    return _mean(values)


def _mrr(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """1 / rank of the first document of a query that gold marks; 0 where none with a score is marked.

    Of documents with equal scores it is the mean over all orders.
    """

    def reciprocal(ties: list[list[float]]) -> float:
        before = 0
        for tie in ties:
            n, marked = len(tie), sum(gold != 0 for gold in tie)
            if marked:
                orders = math.comb(n, marked)
                first = (math.comb(n - 1 - i, marked - 1) / orders for i in range(n - marked + 1))
                return sum(share / (before + 1 + i) for i, share in enumerate(first))
            before += n
        return 0.0

    return _mean([reciprocal(_ties(metric, group)) for group in _groups(metric, rows)])


def _spearman(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """Rank correlation of the cosine of the two rows of a group with the gold value of the first."""
    from scipy.stats import spearmanr  # type: ignore[import-untyped]

    pairs = [g for g in _groups(metric, rows) if len(g) == 2 and all(r["embedding"] is not None for r in g)]
    if not pairs:
        return _mean([])
    vectors = np.array([[row["embedding"] for row in pair] for pair in pairs], np.float64)  # [pairs, 2, D]
    norms = np.linalg.norm(vectors, axis=2).prod(axis=1)
    cosines = (vectors[:, 0] * vectors[:, 1]).sum(axis=1) / np.maximum(norms, np.finfo(np.float64).tiny)
    gold = np.array([_number(metric, pair[0]) for pair in pairs])

    def statistic(units: NDArray[np.int64]) -> float:
        if not np.ptp(cosines[units]) or not np.ptp(gold[units]):
            return 0.0  # of what is all the same the correlation is not defined
        return float(spearmanr(cosines[units], gold[units]).statistic)

    return statistic, len(pairs)


def _pairwise(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    """Of a group's pairs with different gold, the share in which the better one has the higher reward."""
    values = []
    for group in _groups(metric, rows):
        right = [
            a["reward"] is not None and b["reward"] is not None and a["reward"] > b["reward"]
            for a in group
            for b in group
            if _number(metric, a) > _number(metric, b)
        ]
        if right:
            values.append(float(np.mean(right)))
    return _mean(values)


def _exact_match(metric: Metric, rows: Rows) -> tuple[Statistic, int]:
    def answer(text: Any) -> str | None:
        if text is None or metric.pattern is None:
            return None if text is None else str(text).strip()
        matches = list(re.finditer(metric.pattern, str(text)))
        found = matches[-1][min(1, matches[-1].re.groups)] if matches else None
        return None if found is None else found.strip()

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
