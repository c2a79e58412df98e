"""GGUF files become ordinary checkpoints."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from staticjob.errors import ConfigError
from staticjob.models.import_gguf import import_gguf
from staticjob.models.model_files import max_positions, model_config


def test_an_imported_model_is_an_ordinary_float32_checkpoint_that_speaks(smollm2):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = model_config(smollm2)
    assert "quantization_config" not in config
    assert max_positions(config) == 8192
    assert (smollm2 / "tokenizer.json").is_file()
    model = AutoModelForCausalLM.from_pretrained(smollm2).eval()
    assert model.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.inference_mode():
        assert tokenizer.decode(model(ids).logits[0, -1].argmax()).strip() == "Paris"


def test_the_same_template_and_special_tokens_come_along(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token == "<|im_end|>"


def test_a_file_that_is_not_gguf_is_refused_in_one_line(tmp_path):
    source = tmp_path / "model.gguf"
    source.write_bytes(b"not a model")
    with pytest.raises(ConfigError, match="does not start with 'GGUF'"):
        import_gguf(source, tmp_path / "out")
    with pytest.raises(ConfigError, match="No such file"):
        import_gguf(tmp_path / "none.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_reading_needs_and_is_not_installed_is_named(tmp_path, monkeypatch):
    source = tmp_path / "model.gguf"
    source.write_bytes(b"GGUF" + bytes(64))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "accelerate" else found(name)
    )
    with pytest.raises(ConfigError, match="reading it needs more; pip install accelerate"):
        import_gguf(source, tmp_path / "out")


def test_a_damaged_gguf_leaves_nothing_behind(tmp_path):
    source = tmp_path / "model.gguf"
    source.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ConfigError, match="cannot load it"):
        import_gguf(source, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.gguf"]


def test_an_existing_target_is_not_overwritten(tmp_path):
    source, target = tmp_path / "model.gguf", tmp_path / "out"
    source.write_bytes(b"GGUF")
    target.mkdir()
    (target / "config.json").write_text(json.dumps({}))
    with pytest.raises(ConfigError, match="exists already"):
        import_gguf(source, target)
    assert (target / "config.json").exists()
