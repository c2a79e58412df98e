"""A model that cannot be loaded is one line that names the cause and the field that permits it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_encoders import job, save
from transformers import AutoModel

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


def test_a_model_with_code_of_its_own_names_the_field_that_runs_it_however_long_its_path(
    tmp_path: Path,
) -> None:
    directory = tmp_path / ("long" * 60)
    config_file = save("bert", directory) / "config.json"
    config = json.loads(config_file.read_text())
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    config_file.write_text(json.dumps(config | own))
    assert "model.trust_remote_code: true" in refusal(directory)
