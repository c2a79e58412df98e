"""A transformer's sizes, read from its `config.json`, and the parameter count they imply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from staticjob.errors import ConfigError

# Architectures whose feed-forward has a gate: two input matrices beside the output one.
_GATED = {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "modernbert"}
_RMS_NORM = _GATED - {"modernbert"}
_NO_ABSOLUTE_POSITIONS = _GATED
_NO_POOLER = {"distilbert", "electra", "deberta", "deberta-v2", "gpt2"} | _GATED
# Families whose layers run as `engine/post_norm_layer.py` has them, from weights laid out once more.
_POST_NORM = {"bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta"}
# Decoders whose layers run as `engine/pre_norm_layer.py` has them, and generation as `engine/llama_like.py`.
_LLAMA_LIKE = {"llama", "mistral", "qwen2", "qwen3"}


@dataclass(frozen=True)
class Dimensions:
    """Sizes that memory and work depend on.

    `masks`: patterns of attention that need a mask [B, L, L]; `eager`: attention scores are held whole.
    """

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    positions: int
    token_types: int
    gated: bool
    masks: int = 0
    eager: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Dimensions:
        """Read a `config.json`; ConfigError names the size it lacks."""
        model_type = str(config.get("model_type", ""))
        hidden = _size(config, "hidden_size", "dim", "d_model", "n_embd")
        heads = _size(config, "num_attention_heads", "n_heads", "n_head")
        return cls(
            model_type=model_type,
            hidden=hidden,
            layers=_size(config, "num_hidden_layers", "n_layers", "n_layer"),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=_size(
                config, "intermediate_size", "hidden_dim", "ffn_dim", "n_inner", default=4 * hidden
            ),
            vocabulary=_size(config, "vocab_size"),
            positions=_size(config, "max_position_embeddings", "n_positions", default=0),
            token_types=_size(config, "type_vocab_size", default=0),
            gated=model_type in _GATED,
            masks=_masks(config, model_type),
            eager=bool(config.get("attn_logit_softcapping")),
        )

    @property
    def post_norm(self) -> bool:
        """Whether a CPU in float32 runs its layers as `PostNormLayer`."""
        return self.model_type in _POST_NORM

    @property
    def pre_norm(self) -> bool:
        """Whether a CPU in float32 runs its layers as `PreNormLayer`, unless they have a rare bias."""
        return self.model_type in _LLAMA_LIKE

    @property
    def fused(self) -> bool:
        """Whether a CPU in float32 runs its layers over buffers that stay."""
        return self.post_norm or self.pre_norm

    @property
    def by_hand(self) -> bool:
        """Whether generation runs it by hand, unless its config.json asks for something rare."""
        return self.model_type in _LLAMA_LIKE and not self.masks

    def cache_bytes(self, batch: int, length: int, width: int) -> int:
        """Keys and values of `batch` rows of `length` tokens, elements of `width` bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * batch * length * width

    @property
    def linear_parameters(self) -> int:
        """Matrices of all layers: what a token is multiplied with on its way through."""
        query, key_value = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * query + 2 * key_value)
        return self.layers * (attention + (3 if self.gated else 2) * self.hidden * self.intermediate)

    @property
    def embedding_parameters(self) -> int:
        """Word, position and token-type tables."""
        positions = 0 if self.model_type in _NO_ABSOLUTE_POSITIONS else self.positions
        return (self.vocabulary + positions + self.token_types) * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters of the model without a task head."""
        query, key_value = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norm = self.hidden if self.model_type in _RMS_NORM else 2 * self.hidden
        biases = query + 2 * key_value + 2 * self.hidden + self.intermediate
        per_layer = 2 * norm + (0 if self.gated else biases)
        pooler = 0 if self.model_type in _NO_POOLER else self.hidden * (self.hidden + 1)
        return self.embedding_parameters + norm + self.linear_parameters + self.layers * per_layer + pooler


def _masks(config: Mapping[str, Any], model_type: str) -> int:
    if config.get("attn_logit_softcapping") or model_type == "modernbert":
        return 2
    sliding = config.get("sliding_window") and config.get("use_sliding_window", True)
    return 1 if sliding else 0


def _size(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    for name in names:
        if config.get(name) is not None:
            return int(config[name])
    if default is None:
        raise ConfigError(f"model.path: config.json gives no {names[0]}; is this a transformer's config?")
    return default
