"""Seeded models of a few thousand weights, one per family that embeds texts, and their eager results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from staticjob.config.job import JobConfig
from staticjob.tasks.roles import TASKS

VOCABULARY = 101
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 96, "pad_token_id": 0,
}  # fmt: skip
# RoBERTa's positions begin at pad_token_id + 1: 98 embeddings serve 96 tokens.
ROBERTA = {**SIZES, "pad_token_id": 1, "max_position_embeddings": 98}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 96}
T5 = {"vocab_size": VOCABULARY, "d_model": 48, "d_kv": 12, "d_ff": 80, "num_layers": 2, "num_heads": 4}
DISTIL = {
    "vocab_size": VOCABULARY, "dim": 48, "hidden_dim": 80, "n_layers": 2, "n_heads": 4,
    "max_position_embeddings": 96, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 12}
LOCAL = {"global_attn_every_n_layers": 2, "local_attention": 8, "num_hidden_layers": 4}
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
SPECIAL = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
# family: (configuration class, its settings, layers that a fused equivalent replaces)
FAMILIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "bert": ("BertConfig", SIZES, 2),
    "bert_relu": ("BertConfig", {**SIZES, "hidden_act": "relu"}, 2),
    "bert_gelu_new": ("BertConfig", {**SIZES, "hidden_act": "gelu_new"}, 2),
    "roberta": ("RobertaConfig", ROBERTA, 2),
    "xlm_roberta": ("XLMRobertaConfig", ROBERTA, 2),
    "camembert": ("CamembertConfig", ROBERTA, 2),
    "electra": ("ElectraConfig", {**SIZES, "embedding_size": 48}, 2),
    "electra_projected": ("ElectraConfig", {**SIZES, "embedding_size": 32}, 2),
    "distilbert": ("DistilBertConfig", DISTIL, 2),
    "modernbert": ("ModernBertConfig", {**SIZES, **LOCAL, **SPECIAL}, 0),
    "mpnet": ("MPNetConfig", ROBERTA, 0),
    "albert": ("AlbertConfig", {**SIZES, "embedding_size": 32}, 0),
    "deberta_v2": ("DebertaV2Config", {**SIZES, **RELATIVE}, 0),
    "t5": ("T5Config", T5, 0),
    "gpt2": ("GPT2Config", GPT2, 0),
    "llama": ("LlamaConfig", GROUPED, 2),
    "llama_biased": ("LlamaConfig", {**GROUPED, "attention_bias": True}, 0),
    "qwen2": ("Qwen2Config", GROUPED, 2),
    "qwen3": ("Qwen3Config", GROUPED, 2),
    "mistral_sliding": ("MistralConfig", {**GROUPED, "sliding_window": 8}, 2),
    "gemma2": ("Gemma2Config", {**GROUPED, "sliding_window": 8, "query_pre_attn_scalar": 12}, 0),
}  # fmt: skip


def save(family: str, directory: Path, **changes: Any) -> Path:
    """Write a checkpoint; weights are large enough for padding that leaks to show."""
    name, settings, _ = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**{**settings, "initializer_range": 0.2, **changes})
    model = transformers.AutoModel.from_config(config)
    for weights in model.parameters():
        if weights.dim() == 1:  # norms and biases: new ones are all alike
            weights.data += torch.empty_like(weights).uniform_(-0.2, 0.2)
    model.save_pretrained(directory)
    return directory


def job(task: str = "embed", **sections: Any) -> JobConfig:
    """A job on CPU; the engine looks at neither the path of its model nor its input."""
    settings: dict[str, Any] = {
        "name": "test",
        "task": task,
        "model": {"path": "unused", "device": "cpu"},
        "input": {"uri": "unused", "columns": {role: role for role in TASKS[task].reads[0]}},
        "output": {"uri": "unused"},
    }
    for key, values in sections.items():
        settings[key] = {**settings.get(key, {}), **values}
    return JobConfig.model_validate(settings)


def rows(lengths: list[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, VOCABULARY, n).tolist() for n in lengths]


def rectangle(
    texts: list[list[int]], length: int, batch: int, filler: int = 0
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """ids [batch, length], lengths [batch], boundaries [batch]; rows beyond the texts are dummies."""
    ids = np.full((batch, length), filler, np.int32)
    lengths = np.zeros(batch, np.int32)
    for b, text in enumerate(texts):
        ids[b, : len(text)] = text
        lengths[b] = len(text)
    return ids, lengths, np.full(batch, -1, np.int32)


def eager(directory: Path, texts: list[list[int]]) -> list[NDArray[np.float32]]:
    """Token vectors [n, D] of every text alone, as Hugging Face's eager attention computes them."""
    model = transformers.AutoModel.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32
    ).eval()
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    with torch.inference_mode():
        return [model(torch.tensor([text])).last_hidden_state[0].numpy() for text in texts]


def cosine_distance(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """1 - cosine similarity of the rows of two arrays [n, D], in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    distance: NDArray[np.float64] = 1 - (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return distance
