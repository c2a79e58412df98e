"""Geometry of the report's bars: each is one SVG of 1000 units across, stretched to its column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WIDTH = 1000.0


@dataclass(frozen=True)
class Piece:
    """One coloured piece of a bar; `kind` names its colour, `label` is shown on hover."""

    kind: str
    x: float
    width: float
    label: str


def stack(parts: Iterable[tuple[str, float, str]], scale: float) -> list[Piece]:
    """Lay (kind, value, label) end to end; `scale` is the value of the full width."""
    pieces = []
    x = 0.0
    for kind, value, label in parts:
        if value <= 0 or scale <= 0:
            continue
        width = min(value / scale * WIDTH, WIDTH - x)
        pieces.append(Piece(kind, round(x, 2), round(width, 2), label))
        x += width
    return pieces
