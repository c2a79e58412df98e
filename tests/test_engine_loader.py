"""A model that cannot be loaded is one line that names the cause and the field that permits it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_encoders import job, save
from transformers import AutoModel, T5EncoderModel

from staticjob.engine.shape import Shape
from staticjob.engine.static_engine import StaticEngine
from staticjob.errors import ConfigError


def refusal(model_dir: Path, **model: bool) -> str:
    """The one line that says why the model is not loaded."""
    with pytest.raises(ConfigError) as refused:
        StaticEngine(model_dir, job(model=model), [Shape(8, 2)])
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_damaged_safetensors_are_named_as_such(tmp_path: Path) -> None:
    weights = save("bert", tmp_path) / "model.safetensors"
    whole = weights.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"<html>not found</html>", b""):
        weights.write_bytes(damaged)
        line = refusal(tmp_path)
        assert line.startswith(f"model {tmp_path}: its weights are damaged (")
        assert line.endswith("restore the files, then prepare the job again")


def test_damaged_pickles_are_named_as_such(tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(save("bert", tmp_path))
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert refusal(tmp_path).endswith("(model.allow_pickle: true permits other formats)")
    for damaged in (b"garbage" * 100, b""):
        (tmp_path / "pytorch_model.bin").write_bytes(damaged)
        assert "its weights are damaged (" in refusal(tmp_path, allow_pickle=True)


def test_weights_that_are_missing_or_of_another_shape_are_never_random_numbers(tmp_path: Path) -> None:
    config_file = save("bert", tmp_path) / "config.json"
    config = json.loads(config_file.read_text())
    for change, message in (
        ({"num_hidden_layers": 3}, r"no weights for encoder.layer.2.attention.output.LayerNorm.bias, which"),
        (
            {"vocab_size": 90},
            r"embeddings.word_embeddings.weight are [101, 48] where config.json asks for [90",
        ),
        ({"pad_token_id": 500}, "cannot be loaded: Padding_idx must be within num_embeddings"),
    ):
        config_file.write_text(json.dumps(config | change))
        assert message in refusal(tmp_path)


def test_parts_that_no_result_comes_from_may_be_missing(tmp_path: Path) -> None:
    AutoModel.from_pretrained(save("bert", tmp_path), add_pooling_layer=False).save_pretrained(tmp_path)
    config_file = save("t5", tmp_path / "t5") / "config.json"
    config = config_file.read_text()
    T5EncoderModel.from_pretrained(tmp_path / "t5").save_pretrained(tmp_path / "t5")
    config_file.write_text(config)  # an encoder and a decoder, as published ones of the kind say
    for directory in (tmp_path, tmp_path / "t5"):
        StaticEngine(directory, job(), [Shape(8, 2)])


def test_a_model_with_code_of_its_own_names_the_field_that_runs_it_however_long_its_path(
    tmp_path: Path,
) -> None:
    directory = tmp_path / ("long" * 60)
    config_file = save("bert", directory) / "config.json"
    config = json.loads(config_file.read_text())
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    config_file.write_text(json.dumps(config | own))
    assert "model.trust_remote_code: true" in refusal(directory)
