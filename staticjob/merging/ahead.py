"""Many items worked on at once, their results taken in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# Small objects looked up at once.
LOOKUPS_AHEAD = 16


def in_order(work: Callable[[Item], Result], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """`work` of every item in order, at most `ahead` of them computed or held before their turn."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(ahead) as threads:
        try:
            for item in items:
                waiting.append(threads.submit(work, item))
                if len(waiting) >= ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)
