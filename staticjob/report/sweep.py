"""The table of a sweep as one HTML page: points by metrics, tokens, time, cost and useful share."""

from __future__ import annotations

from staticjob.evaluation.results import SweepResult, Value
from staticjob.report.html import environment

WIDTH = 100.0


def render_sweep(result: SweepResult, output: str) -> str:
    """Draw the table; every text of the job or its data is escaped."""
    names = list(dict.fromkeys(name for point in result.points for name in point.metrics))
    scales = {name: _scale([p.metrics[name] for p in result.points if name in p.metrics]) for name in names}
    best = {name: max(p.metrics[name].value for p in result.points if name in p.metrics) for name in names}
    return (
        environment()
        .get_template("sweep.html.j2")
        .render(r=result, output=output, names=names, best=best, scales=scales, place=place)
    )


def _scale(values: list[Value]) -> tuple[float, float]:
    """The range of a column's picture: all its intervals."""
    return min(v.low for v in values), max(v.high for v in values)


def place(value: float, scale: tuple[float, float]) -> float:
    """Where a value stands in a picture WIDTH units across."""
    low, high = scale
    return round((value - low) / (high - low) * WIDTH, 2) if high > low else WIDTH / 2
