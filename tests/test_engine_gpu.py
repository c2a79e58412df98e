"""What only a GPU shows: graph capture, replay equal to eager, and memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_encoders import cosine_distance, eager, job, rectangle, rows, save

from staticjob.engine.shape import Shape
from staticjob.engine.static_engine import StaticEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none"),
]
SHAPES = [Shape(96, 16), Shape(32, 32), Shape(8, 64)]


def engine_of(directory: Path, dtype: str = "float32") -> StaticEngine:
    engine = StaticEngine(directory, job(model={"device": "cuda", "dtype": dtype}), SHAPES)
    for shape in engine.shapes:
        engine.warm_up(shape)
    return engine


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "qwen3"])
def test_replay_equals_the_row_alone_in_eager_hugging_face(family: str, tmp_path: Path) -> None:
    texts = rows([1, 5, 8, 7, 3])
    expected = np.stack([v.mean(axis=0) for v in eager(save(family, tmp_path), texts)])
    engine = engine_of(tmp_path)
    for shape in SHAPES:
        found = engine.run(shape, *rectangle(texts, shape.length, shape.batch)).columns["embedding"][:5]
        # TF32 is off by default, so float32 products are float32 products.
        assert cosine_distance(found, expected).max() < 2e-6


def test_every_shape_is_captured_once_and_replayed(tmp_path: Path) -> None:
    engine = engine_of(save("bert", tmp_path))
    assert engine._graphs is not None
    graphs = dict(engine._graphs._graphs)
    assert set(graphs) == set(SHAPES)
    for shape in SHAPES:
        engine.run(shape, *rectangle(rows([4] * shape.batch), shape.length, shape.batch))
    assert engine._graphs._graphs == graphs


def test_same_row_same_bits_whatever_the_neighbours_and_graphs_in_between(tmp_path: Path) -> None:
    engine = engine_of(save("bert", tmp_path), "bfloat16")
    shape, probe = Shape(32, 32), rows([19], seed=1)[0]
    alone = engine.run(shape, *rectangle([probe], 32, 32)).columns["embedding"][0]
    for place in (0, 17, 31):
        engine.run(SHAPES[0], *rectangle(rows([96] * 16, place), 96, 16))
        texts = rows([32] * 32, seed=place)
        texts[place] = probe
        assert np.array_equal(engine.run(shape, *rectangle(texts, 32, 32)).columns["embedding"][place], alone)


def test_smaller_shapes_add_nothing_to_the_pool_of_the_largest(tmp_path: Path) -> None:
    directory = save("bert", tmp_path)
    engine = StaticEngine(directory, job(model={"device": "cuda", "dtype": "float32"}), SHAPES)
    engine.warm_up(SHAPES[0])
    largest = torch.cuda.memory_reserved()
    for shape in SHAPES[1:]:
        engine.warm_up(shape)
    assert torch.cuda.memory_reserved() - largest <= 2 << 20
    assert engine.peak_bytes() is not None
