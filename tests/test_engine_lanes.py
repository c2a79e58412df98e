"""How a CPU engine's cores share the work."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from staticjob.engine.lanes import Lanes


def test_each_lane_computes_with_one_core_and_the_caller_keeps_its_own() -> None:
    before = torch.get_num_threads()

    def where(_: int) -> tuple[str, int]:
        return threading.current_thread().name, torch.get_num_threads()

    seen = [found for _, found in Lanes(2).map(where, range(8))]
    assert len(seen) == 8
    assert {threads for _, threads in seen} == {1}
    assert all(name.startswith("lane") for name, _ in seen)
    assert torch.get_num_threads() == before


def test_results_come_in_the_order_of_the_items_whichever_is_done_first() -> None:
    last = threading.Event()

    def work(item: int) -> int:
        if item == 0:  # ends only after a later one
            assert last.wait(10)
        elif item == 1:
            last.set()
        return item * item

    assert list(Lanes(2).map(work, range(5))) == [(0, 0), (1, 1), (2, 4), (3, 9), (4, 16)]


def test_as_many_items_as_lanes_are_at_work_at_once() -> None:
    together = threading.Barrier(3, timeout=10)
    assert len(list(Lanes(3).map(lambda _: together.wait(), range(6)))) == 6


def test_items_are_not_taken_far_ahead() -> None:
    taken = []

    def items() -> Iterator[int]:
        for i in range(100):
            taken.append(i)
            yield i

    results = Lanes(2).map(lambda item: item, items())
    next(results)
    assert len(taken) <= 4
    results.close()


def test_what_a_lane_raises_surfaces() -> None:
    def fail(index: int) -> None:
        if index == 3:
            raise RuntimeError("batch 3")

    with pytest.raises(RuntimeError, match="batch 3"):
        list(Lanes(2).map(fail, range(5)))


def test_whoever_leaves_early_waits_for_what_is_under_way_and_begins_no_more() -> None:
    begun: list[int] = []
    ended: list[int] = []
    go = threading.Event()

    def work(item: int) -> None:
        begun.append(item)
        if item:
            assert go.wait(10)
        ended.append(item)

    results = Lanes(1).map(work, range(10))
    next(results)
    threading.Timer(0.05, go.set).start()
    results.close()
    assert begun == ended
    assert len(begun) <= 2
