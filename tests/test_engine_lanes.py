"""How a batch is shared between cores."""

from __future__ import annotations

import threading

import pytest
import torch

from staticjob.engine import Shape
from staticjob.engine.lanes import LEAST_SLOTS, Lanes, part_rows


@pytest.mark.parametrize(
    ("shape", "lanes", "rows"),
    [
        (Shape(512, 8), 2, 1),  # four parts of one row each would do; eight are finer and cost no more
        (Shape(128, 32), 2, 4),
        (Shape(344, 11), 2, 2),  # 6 parts of 2 rows: one dummy row, as with 2 parts of 6
        (Shape(512, 1), 2, 1),
        (Shape(8, 100), 2, 50),  # finer parts would be too small
        (Shape(64, 33), 2, 17),
        (Shape(64, 33), 1, 33),
        (Shape(64, 3), 4, 3),
    ],
)
def test_a_batch_is_split_where_it_costs_no_more_rows(shape: Shape, lanes: int, rows: int) -> None:
    assert part_rows(shape, lanes) == rows


@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
def test_every_split_covers_the_batch_with_less_than_one_part_of_dummies_a_lane(lanes: int) -> None:
    for length in (8, 44, 128, 512):
        for batch in range(1, 70):
            rows = part_rows(Shape(length, batch), lanes)
            parts = -(-batch // rows)
            assert rows * parts >= batch
            assert rows * parts <= lanes * -(-batch // lanes)
            if parts > lanes:
                assert rows * length >= LEAST_SLOTS


def test_each_lane_computes_with_one_core_and_the_caller_keeps_its_own() -> None:
    before = torch.get_num_threads()
    seen: list[tuple[str, int]] = []
    Lanes(2).map(lambda _: seen.append((threading.current_thread().name, torch.get_num_threads())), 8)
    assert len(seen) == 8
    assert {threads for _, threads in seen} == {1}
    assert all(name.startswith("lane") for name, _ in seen)
    assert torch.get_num_threads() == before


def test_what_a_lane_raises_surfaces() -> None:
    def fail(index: int) -> None:
        if index == 3:
            raise RuntimeError("part 3")

    with pytest.raises(RuntimeError, match="part 3"):
        Lanes(2).map(fail, 5)
