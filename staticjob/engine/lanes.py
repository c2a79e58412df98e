"""A batch on several cores: equal sub-rectangles, each computed by one thread alone.

Two threads that share every product wait for each other after each one; two threads with a
rectangle each wait once per batch, and a core taken by another process delays only its own share.
All sub-rectangles of a shape have one shape, so a row's bits do not depend on which it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from staticjob.engine.shape import Shape

# Slots below which products of a sub-rectangle lose more than better balance wins.
LEAST_SLOTS = 512
Result = TypeVar("Result")


def part_rows(shape: Shape, lanes: int) -> int:
    """Rows of one sub-rectangle of `shape`: the split that computes the fewest rows, then the finest.

    A batch of fewer rows than lanes is not split: its products run on all cores together.
    """
    if lanes == 1 or shape.batch < lanes:
        return shape.batch
    best, cost = -(-shape.batch // lanes), lanes * -(-shape.batch // lanes)
    for parts in range(2 * lanes, shape.batch + 1, lanes):
        rows = -(-shape.batch // parts)
        if rows * shape.length < LEAST_SLOTS:
            break
        if rows * parts <= cost:
            best, cost = rows, rows * parts
    return best


class Lanes:
    """The threads of one engine, each computing with one core."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "lane", initializer=torch.set_num_threads, initargs=(1,))

    def map(self, work: Callable[[int], None], count: int) -> None:
        """Call work(0) … work(count - 1), each on whichever lane is free; re-raises the first failure."""
        for future in [self._pool.submit(work, i) for i in range(count)]:
            future.result()

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Call work(*arguments) on whichever lane is free first."""
        return self._pool.submit(work, *arguments)
