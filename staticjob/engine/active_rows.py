"""The active-row monitor: how many rows of a batch were still being written, step by step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ActiveRows:
    """`active[t]` of `rows` real rows were unfinished when step t began; a step is one decode pass.

    The token that follows the prompt comes out of the prefill, so a row of n tokens is active in the
    first n - 1 steps.
    """

    rows: int
    active: tuple[int, ...]
    left: int = 0  # rows still unfinished after the last step, when they were handed over
