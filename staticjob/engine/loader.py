"""A Hugging Face model from local files onto the job's device, or one line that says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from staticjob.config import ModelConfig
from staticjob.errors import ConfigError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def resolve_device(model: ModelConfig) -> torch.device:
    """`auto` is cuda where there is one; ConfigError for a device this machine lacks."""
    if model.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(model.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"model.device: {model.device!r} cannot be used here: {reason}") from None
    return device


def resolve_dtype(model: ModelConfig, device: torch.device) -> torch.dtype:
    """`auto` is float32 on CPU, bfloat16 on a GPU that has it, else float16."""
    if model.dtype != "auto":
        return DTYPES[model.dtype]
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def load_model(
    model_dir: Path,
    model: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    attention: str,
    kind: Literal["AutoModel", "AutoModelForCausalLM"] = "AutoModel",
) -> nn.Module:
    """The model in evaluation mode; AutoModel is without task head. ConfigError when it cannot be loaded."""
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded = getattr(transformers, kind).from_pretrained(
            model_dir,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=model.trust_remote_code,
            use_safetensors=None if model.allow_pickle else True,
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"model {model_dir}: cannot be loaded: {reason}{_hint(model_dir, model)}") from None
    module: nn.Module = loaded.to(device).eval()
    return module.requires_grad_(False)


def encoder(model: Any) -> nn.Module:
    """The part that reads a text: an encoder-decoder's encoder, else the whole; without a KV cache."""
    module: nn.Module = model.get_encoder() if model.config.is_encoder_decoder else model
    model.config.use_cache = False
    return module


def _hint(model_dir: Path, model: ModelConfig) -> str:
    if not model.allow_pickle and not list(model_dir.glob("*.safetensors")):
        return "; there are no .safetensors files (model.allow_pickle: true permits other formats)"
    return ""
