"""A Hugging Face model from local files onto the job's device, or one line that says why not."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from staticjob.config.job import ModelConfig
from staticjob.engine.heads import Loads
from staticjob.errors import ConfigError, shortened

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# What readers of weights raise for bytes that are none.
DAMAGED = (SafetensorError, pickle.UnpicklingError, EOFError)


def resolve_device(model: ModelConfig) -> torch.device:
    """`auto` is cuda where there is one; ConfigError for a device this machine lacks."""
    if model.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(model.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = shortened(error)
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
    kind: Loads = "AutoModel",
) -> nn.Module:
    """The model in evaluation mode; AutoModel is without task head.

    ConfigError when it cannot be loaded, or when its files lack weights that are used.
    """
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded, found = getattr(transformers, kind).from_pretrained(
            model_dir,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=model.trust_remote_code,
            use_safetensors=None if model.allow_pickle else True,
            ignore_mismatched_sizes=True,  # refused below, by name
            output_loading_info=True,
        )
    except DAMAGED as error:
        raise ConfigError(
            f"model {model_dir}: its weights are damaged ({shortened(error)}); "
            "restore the files, then prepare the job again"
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # transformers raises many kinds
        hint = _hint(error, model_dir, model)
        raise ConfigError(f"model {model_dir}: cannot be loaded: {shortened(error)}{hint}") from None
    loaded.config.use_cache = False  # the callers that keep one say so
    # transformers fills what is missing, and what does not fit, with random numbers.
    for name, stored, expected in sorted(found["mismatched_keys"]):
        raise ConfigError(
            f"model {model_dir}: its weights {name} are {list(stored)} where config.json asks for "
            f"{list(expected)}; restore the files that belong together"
        )
    missing = [name for name in found["missing_keys"] if _is_used(name, loaded.config)]
    if missing:
        raise ConfigError(
            f"model {model_dir}: no weights for {min(missing)}, which {type(loaded).__name__} needs; name a "
            "model that was trained for this task, with all its files"
        )
    module: nn.Module = loaded.to(device).eval()
    return module.requires_grad_(False)


def encoder(model: Any) -> nn.Module:
    """The part that reads a text: an encoder-decoder's encoder, else the whole."""
    module: nn.Module = model.get_encoder() if model.config.is_encoder_decoder else model
    return module


def _is_used(weight: str, config: Any) -> bool:
    """Whether a weight has a part in any result: no pooler of transformers' has, nor a decoder behind an
    encoder."""
    return "pooler" not in weight.split(".") and not (
        config.is_encoder_decoder and weight.startswith("decoder.")
    )


def _hint(error: BaseException, model_dir: Path, model: ModelConfig) -> str:
    """Which field of the job permits what the model needs; empty where none does."""
    if not model.trust_remote_code and "trust_remote_code" in str(error):
        return "; the model brings code of its own (model.trust_remote_code: true runs it)"
    if not model.allow_pickle and not list(model_dir.glob("*.safetensors")):
        return "; there are no .safetensors files (model.allow_pickle: true permits other formats)"
    return ""
