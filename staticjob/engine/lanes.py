"""The cores of a CPU engine: each computes whole batches, alone.

Threads that share every product wait for each other after each one; threads with a batch each never
do, and a core taken by another process delays only its own batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


class Lanes:
    """The threads of one engine, each computing with one core."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "lane", initializer=torch.set_num_threads, initargs=(1,))

    def map(
        self, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> Generator[tuple[Item, Result], None, None]:
        """Each item and work(item), in the items' order; every lane is busy while there are items.

        Items are taken no further ahead than one waiting for each lane at work. Re-raises the first
        failure; whoever leaves early (`close`) waits for what the lanes are at.
        """
        pending: deque[tuple[Item, Future[Result]]] = deque()
        try:
            for item in items:
                pending.append((item, self.submit(work, item)))
                if len(pending) == 2 * self.count:
                    first, future = pending.popleft()
                    yield first, future.result()
            while pending:
                first, future = pending.popleft()
                yield first, future.result()
        finally:
            left = [future for _, future in pending if not future.cancel()]
            wait(left)

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Call work(*arguments) on whichever lane is free first."""
        return self._pool.submit(work, *arguments)
