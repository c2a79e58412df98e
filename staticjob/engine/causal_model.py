"""A causal language model over the static cache: by hand where its class is known, else its own forward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from staticjob.config.job import ModelConfig
from staticjob.engine import hf_decoder, llama_like, loader
from staticjob.engine.kv_cache import LayerCache
from staticjob.errors import ConfigError


class CausalModel(Protocol):
    """What decoding asks of a model; both passes write the cache and are free of host decisions."""

    vocabulary: int

    def prefill(self, ids: Tensor, last: Tensor, caches: Sequence[LayerCache]) -> Tensor: ...

    def step(self, tokens: Tensor, slots: Tensor, rung: int, caches: Sequence[LayerCache]) -> Tensor: ...


def load_causal(
    model_dir: Path, model: ModelConfig, device: torch.device, dtype: torch.dtype, length: int
) -> CausalModel:
    """The model for positions 0 … length - 1. ConfigError when it cannot be loaded or run so."""
    loaded = loader.load_model(
        model_dir, model, device, dtype, hf_decoder.register(), kind="AutoModelForCausalLM"
    )
    if llama_like.supports(loaded):
        return llama_like.LlamaLike(loaded, length)
    if hf_decoder.supports(loaded):
        return hf_decoder.HfDecoder(loaded)
    raise ConfigError(
        f"model {model_dir}: {type(loaded).__name__} keeps a cache that cannot be static; set engine: vllm"
    )
