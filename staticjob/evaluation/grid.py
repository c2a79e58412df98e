"""A sweep's file: a job file with the sections `sweep` and `metrics`, read without running anything.

`sweep` names fields and the values each takes, `metrics` what is counted. Free of heavy imports: Airflow
reads it whenever it reads its DAG files.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from staticjob.config.airflow import AirflowConfig
from staticjob.config.explain import explain
from staticjob.config.job import JobConfig
from staticjob.config.job_file import apply_override, fill_date, read_job_file, validate_job
from staticjob.config.section import Section, Whole
from staticjob.errors import ConfigError
from staticjob.layout import join

SECTION = "sweep"


class Reads(NamedTuple):
    """What a metric reads of a row beside its gold column, and the task that gives it."""

    task: str
    column: str


READS = {
    "accuracy": Reads("classify", "label"),
    "macro_f1": Reads("classify", "label"),
    "choice_accuracy": Reads("logprob", "logprob"),
    "choice_accuracy_per_token": Reads("logprob", "logprob"),
    "ndcg": Reads("rerank", "score"),
    "mrr": Reads("rerank", "score"),
    "spearman": Reads("embed", "embedding"),
    "pairwise_accuracy": Reads("reward", "reward"),
    "exact_match": Reads("generate", "text"),
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

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value

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
    if not isinstance(counted, list | None):
        raise ConfigError(f"{path}: metrics: expected a list of metrics, each with metric and gold")
    metrics = tuple(_metric(item, f"{path}: metrics.{number}") for number, item in enumerate(counted or ()))
    for i, j in itertools.combinations(range(len(metrics)), 2):
        if metrics[i].full_name == metrics[j].full_name:
            raise ConfigError(f"{path}: metrics.{j}: the same as metrics.{i}; leave one out")
    base = validate_job(data, str(path))
    output = fill_date(base, date, str(path)).output.uri
    # One run maps a step over the tasks of all points.
    share = max(1, base.max_mapped_tasks // math.prod(map(len, grid.values())))
    airflow = (base.airflow or AirflowConfig()).model_copy(update={"max_mapped_tasks": share})
    points: list[Point] = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        own = deepcopy(data)
        for key, value in settings.items():
            apply_override(own, f"{key}={yaml.safe_dump(value, default_flow_style=True)}")
        own.setdefault("output", {})["uri"] = join(output, _folder(settings))
        config = fill_date(validate_job(own, f"{path} at {settings}"), date, str(path))
        if any(config.output.uri == point.config.output.uri for point in points):
            raise ConfigError(f"{path}: sweep: the point {settings} stands there twice; leave one out")
        for number, metric in enumerate(metrics):
            problem = _misfit(metric, config)
            if problem:
                raise ConfigError(f"{path}: metrics.{number}: {metric.metric} {problem}")
        points.append(Point(settings, config.model_copy(update={"airflow": airflow})))
    return Grid(base, output, tuple(points), metrics)


def _metric(item: Any, where: str) -> Metric:
    try:
        return Metric.model_validate(item)
    except ValidationError as error:
        raise ConfigError(explain(error, where, Metric)) from None


def _misfit(metric: Metric, config: JobConfig) -> str | None:
    """Why the output of a job cannot be counted by a metric; None where it can, as far as the job says."""
    task = READS[metric.metric].task
    if config.task != task:
        return f"counts what task {task} gives, the job's is {config.task}"
    if config.lists:
        return "counts rows of one document each; give the role document instead of documents"
    if config.generate and config.generate.n > 1:
        return "counts one text a row; set generate.n to 1"
    for column in filter(None, (metric.gold, metric.group_by)):
        if config.input.keep != "all" and column not in config.input.keep:
            return f"reads column {column!r}; name it in input.keep too"
    return None


def _folder(settings: dict[str, Any]) -> str:
    """A folder's name by what the point changes: the same point finds its work again."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:10]
    return f"point-{digest}"
