"""Arithmetic of one forward pass, from config.json alone: what the report divides time by.

FLOPs count a multiply-add as two, as Kaplan et al. 2020 (arXiv:2001.08361, table 1) do, and leave
out what is not a matrix product (norms, activations, softmax): under 1% of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Families that multiply two projections whatever their activation is called.
GATED = {"modernbert", "gemma", "gemma2", "gemma3_text", "nomic_bert"}


@dataclass(frozen=True)
class Dimensions:
    """The sizes that decide the cost of an encoder or decoder layer."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    gated: bool  # gate and up projections are multiplied before the one down
    vocab: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> Dimensions:
        """Read a config.json, whichever of the usual key names it has."""
        config = config.get("text_config") or config

        def first(*names: str, default: int = 0) -> int:
            return next((int(config[n]) for n in names if isinstance(config.get(n), int)), default)

        hidden = first("hidden_size", "d_model", "dim", "n_embd")
        heads = first("num_attention_heads", "n_head", "n_heads", "num_heads", default=1)
        activation = str(config.get("hidden_act") or config.get("hidden_activation") or "")
        gated = activation in {"silu", "swish"} or config.get("model_type") in GATED
        return cls(
            layers=first("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
            hidden=hidden,
            intermediate=first("intermediate_size", "hidden_dim", "d_ff", "n_inner", default=4 * hidden),
            heads=heads,
            kv_heads=first("num_key_value_heads", default=heads),
            head_dim=first("head_dim", "d_kv", default=hidden // heads),
            gated=gated,
            vocab=first("vocab_size"),
        )

    @property
    def layer_weights(self) -> int:
        """Elements of one layer's matrices."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + self.hidden * self.intermediate * (3 if self.gated else 2)


def forward_flops(config: dict[str, Any], length: int, batch: int) -> int:
    """FLOPs of one forward pass of [batch, length]: every slot is computed, padding included."""
    d = Dimensions.of(config)
    linear = 2 * d.layer_weights * batch * length
    attention = 4 * batch * d.heads * d.head_dim * length * length  # scores, then weighted values
    return d.layers * (linear + attention)


def forward_bytes(config: dict[str, Any], length: int, batch: int, item: int = 4) -> int:
    """Least bytes moved to and from memory by one forward pass: each matrix once, each layer's input
    and output once; what a perfect cache would leave. `item` is the element's size in bytes.
    """
    d = Dimensions.of(config)
    slots = batch * length
    weights = d.layers * d.layer_weights
    activations = slots * d.hidden * (2 * d.layers + 1)
    return item * (weights + activations)
