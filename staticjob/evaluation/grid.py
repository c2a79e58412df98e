"""A sweep's file: a job file with the sections `sweep` and `metrics`, read without running anything.

`sweep` names fields and the values each takes, `metrics` what is counted. Free of heavy imports: Airflow
reads it whenever it reads its DAG files.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from staticjob.config import JobConfig, Section, Whole
from staticjob.errors import ConfigError
from staticjob.job_file import apply_override, fill_date, read_job_file, validate_job
from staticjob.layout import join

SECTION = "sweep"
# What each metric reads of a row beside its gold column.
READS = {
    "accuracy": "label",
    "macro_f1": "label",
    "choice_accuracy": "logprob",
    "choice_accuracy_per_token": "logprob",
    "ndcg": "score",
    "mrr": "score",
    "spearman": "embedding",
    "pairwise_accuracy": "reward",
    "exact_match": "text",
}
GROUPED = frozenset(READS) - {"accuracy", "macro_f1", "exact_match"}


class Metric(Section):
    """One entry of `metrics`."""

    metric: Literal[
        "accuracy", "macro_f1", "choice_accuracy", "choice_accuracy_per_token", "ndcg", "mrr", "spearman",
        "pairwise_accuracy", "exact_match",
    ]  # fmt: skip
    gold: str = Field(description="kept column with the right answer")
    group_by: str | None = Field(
        default=None, description="kept column: the choices of one question, the documents of one query"
    )
    k: Whole = Field(default=10, gt=0, description="ndcg: documents that count")
    pattern: str | None = Field(
        default=None, description="exact_match: the answer is its last match (first group) in text and gold"
    )

    @model_validator(mode="after")
    def _group(self) -> Metric:
        if (self.metric in GROUPED) != (self.group_by is not None):
            need = "needs" if self.metric in GROUPED else "takes no"
            raise ValueError(f"metric {self.metric} {need} group_by")
        return self

    @property
    def name(self) -> str:
        return f"ndcg@{self.k}" if self.metric == "ndcg" else self.metric

    @property
    def full_name(self) -> str:
        """The name with all that tells this metric from others of that name."""
        told = {"of": self.gold, "by": self.group_by, "matching": self.pattern}
        return " ".join([self.name, *(f"{word} {value}" for word, value in told.items() if value)])


def by_name(metrics: Sequence[Metric]) -> dict[str, Metric]:
    """Metrics by name, by full name where several share one."""
    sharing = Counter(metric.name for metric in metrics)
    return {m.name if sharing[m.name] == 1 else m.full_name: m for m in metrics}


@dataclass(frozen=True)
class Point:
    """One job of a sweep: what it changes, and what it is."""

    settings: dict[str, Any]
    config: JobConfig


@dataclass(frozen=True)
class Grid:
    """Every point of a sweep. `base` is the job without it, undated; `output` holds the points' own."""

    base: JobConfig
    output: str
    points: tuple[Point, ...]
    metrics: tuple[Metric, ...]


def is_sweep(data: Mapping[str, Any]) -> bool:
    """Whether a job file's mapping is a sweep's."""
    return SECTION in data


def read_grid(path: str | Path, date: dt.date | None, overrides: tuple[str, ...] = ()) -> Grid:
    """Read a sweep's file; ConfigError for a grid, a metric or a point that does not fit."""
    data = read_job_file(path)
    for assignment in overrides:
        apply_override(data, assignment)
    grid, counted = data.pop(SECTION, None), data.pop("metrics", None)
    if not isinstance(grid, dict) or not grid or not all(isinstance(v, list) and v for v in grid.values()):
        raise ConfigError(
            f"{path}: sweep: expected fields with lists of values, e.g. limits.max_length: [128]"
        )
    try:
        metrics = TypeAdapter(tuple[Metric, ...]).validate_python(counted or ())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: metrics.{where}: {first['msg']}") from None
    for i, j in itertools.combinations(range(len(metrics)), 2):
        if metrics[i].full_name == metrics[j].full_name:
            raise ConfigError(f"{path}: metrics.{j}: the same as metrics.{i}; leave one out")
    base = validate_job(data, str(path))
    output = fill_date(base, date, str(path)).output.uri
    points = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        own = deepcopy(data)
        for key, value in settings.items():
            apply_override(own, f"{key}={yaml.safe_dump(value, default_flow_style=True)}")
        own.setdefault("output", {})["uri"] = join(output, _folder(settings))
        config = fill_date(validate_job(own, f"{path} at {settings}"), date, str(path))
        points.append(Point(settings, config))
    return Grid(base, output, tuple(points), metrics)


def _folder(settings: dict[str, Any]) -> str:
    """A folder's name by what the point changes: the same point finds its work again."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
    return f"point-{digest}"
