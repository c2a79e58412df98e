"""Seeded causal language models of a few thousand weights, one per family the decoder must run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

VOCABULARY = 97
COMMON = {
    "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "max_position_embeddings": 128,
}  # fmt: skip
GROUPED = {**COMMON, "num_key_value_heads": 2, "head_dim": 8}
GPT2 = {
    "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
    "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 128,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", GROUPED),
    "llama3_rope": ("LlamaConfig", {**GROUPED, "rope_parameters": LLAMA3_ROPE, "attention_bias": True}),
    "mistral": ("MistralConfig", {**GROUPED, "sliding_window": None}),
    "qwen2": ("Qwen2Config", {k: v for k, v in GROUPED.items() if k != "head_dim"}),
    "qwen3": ("Qwen3Config", {**GROUPED, "tie_word_embeddings": True}),
    "mistral_sliding": ("MistralConfig", {**GROUPED, "sliding_window": 7}),
    "gpt2": ("GPT2Config", GPT2),
    "gemma2": ("Gemma2Config", {**GROUPED, "sliding_window": 7, "query_pre_attn_scalar": 8}),
    "gpt_neox": ("GPTNeoXConfig", COMMON),
}
# Heads as wide as vLLM's CPU kernels want them.
WIDE = {**GROUPED, "hidden_size": 128, "num_attention_heads": 4, "head_dim": 32}
CONFIGS["llama_wide"] = ("LlamaConfig", WIDE)
BY_HAND = {"llama", "llama_wide", "llama3_rope", "mistral", "qwen2", "qwen3"}


def save(family: str, directory: Path, seed: int = 0) -> Path:
    """Write a checkpoint; weights are large enough for greedy text not to repeat one token."""
    name, settings = CONFIGS[family]
    torch.manual_seed(seed)
    config = getattr(transformers, name)(**settings, initializer_range=0.3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(directory)
    return directory


def load(directory: Path) -> Any:
    """The checkpoint as Hugging Face runs it."""
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@dataclasses.dataclass(frozen=True)
class Reference:
    """Greedy tokens of one row run alone, and the gap between the two best logits at each of them."""

    tokens: list[int]
    margins: list[float]


def greedy(model: Any, prompt: list[int], cap: int, stop: tuple[int, ...] = ()) -> Reference:
    """Batch-1 greedy decoding by whole forward passes: nothing cached, nothing padded."""
    ids, tokens, margins = list(prompt), [], []
    with torch.inference_mode():
        while len(tokens) < cap and not (tokens and tokens[-1] in stop):
            top = model(torch.tensor([ids])).logits[0, -1].float().topk(2)
            tokens.append(int(top.indices[0]))
            margins.append(float(top.values[0] - top.values[1]))
            ids.append(tokens[-1])
    return Reference(tokens, margins)


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCABULARY, n).tolist() for n in lengths]


def rectangle(rows: list[list[int]], length: int, batch: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """ids [batch, length] and lengths [batch]; what stands behind a row is not zero, so a leak shows."""
    ids = np.full((batch, length), VOCABULARY - 1, np.int32)
    lengths = np.zeros(batch, np.int32)
    for b, row in enumerate(rows):
        ids[b, : len(row)] = row
        lengths[b] = len(row)
    return ids, lengths
