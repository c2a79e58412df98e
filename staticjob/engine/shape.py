"""The rectangle a batch is computed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Shape:
    """`batch` rows of `length` token positions; ordered by length, then batch."""

    length: int
    batch: int

    @property
    def slots(self) -> int:
        return self.length * self.batch

    def __str__(self) -> str:
        return f"{self.batch}×{self.length}"
