"""Llama-like decoders run by hand: the same mathematics in fewer, larger products.

Query, key and value are one product, gate and up another; the rotary table is computed once; attention
reads the grouped cache in place. Every class in the table is held to the Hugging Face result by a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from staticjob.engine.grouped_attention import additive_mask, attend_step
from staticjob.engine.kv_cache import LayerCache, step_mask, write_prompt, write_step
from staticjob.engine.packed_linear import pack

# Class name: decoders that are RMSNorm, rotary, grouped-query attention and a gated feed-forward.
KNOWN = {
    "transformers.models.llama.modeling_llama.LlamaForCausalLM",
    "transformers.models.mistral.modeling_mistral.MistralForCausalLM",
    "transformers.models.qwen2.modeling_qwen2.Qwen2ForCausalLM",
    "transformers.models.qwen3.modeling_qwen3.Qwen3ForCausalLM",
}
# Rotary tables that change with the length of the text cannot be computed once.
FIXED_ROTARY = {"default", "linear", "llama3", "yarn"}
# Rows a weight is laid out for: a decode step's, which runs once per token.
STEP_ROWS = 32


def supports(model: nn.Module) -> bool:
    """Whether this model is one of the table, without a feature that is not run here."""
    config: Any = model.config
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        f"{type(model).__module__}.{type(model).__qualname__}" in KNOWN
        and window is None
        and rope.get("rope_type", "default") in FIXED_ROTARY
    )


class LlamaLike:
    """`model` (a Hugging Face causal LM of the table) over positions 0 … `length` - 1."""

    def __init__(self, model: Any, length: int) -> None:
        base = model.model
        self._embed: Tensor = base.embed_tokens.weight
        self._layers = [_Layer(layer) for layer in base.layers]
        self._norm = _Norm(base.norm)
        self._head = pack(model.lm_head.weight, model.lm_head.bias, STEP_ROWS)
        self.vocabulary: int = model.lm_head.weight.shape[0]
        positions = torch.arange(length, device=self._embed.device)[None]
        cosine, sine = base.rotary_emb(self._embed, positions)  # [1, length, D]
        # rotate_half's sign belongs to the first half of the sine: then it is a plain swap of halves.
        half = sine.shape[-1] // 2
        self._cosine, self._sine = cosine[0], torch.cat((-sine[0, :, :half], sine[0, :, half:]), dim=-1)

    def prefill(self, ids: Tensor, last: Tensor, caches: Sequence[LayerCache]) -> Tensor:
        """ids [n, L], last [n]: each row's last position → logits [n, V]; fills slots 0 … L - 1."""
        rows, length = ids.shape
        cosine, sine = self._cosine[:length, None], self._sine[:length, None]  # [L, 1, D]
        x = functional.embedding(ids, self._embed).view(rows * length, -1)
        for layer, cache in zip(self._layers, caches, strict=True):
            query, key, value = layer.project(x, (rows, length), cosine, sine)  # [n, L, heads, D]
            query, key, value = (t.transpose(1, 2) for t in (query, key, value))
            write_prompt(cache, key, value)
            # Prompts stand at the left: no token looks at the padding behind it.
            context = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=layer.scaling, enable_gqa=True
            )
            x = layer.finish(x, context.transpose(1, 2).reshape(rows * length, -1))
        x = x.view(rows, length, -1)[torch.arange(rows, device=x.device), last]
        return self._head(self._norm(x))

    def step(self, tokens: Tensor, slots: Tensor, rung: int, caches: Sequence[LayerCache]) -> Tensor:
        """tokens [B] at slots [B] → logits [B, V], attending over the first `rung` slots."""
        cosine, sine = self._cosine[slots, None], self._sine[slots, None]  # [B, 1, D]
        x = functional.embedding(tokens, self._embed)
        first = self._layers[0]
        bias = additive_mask(step_mask(slots, rung), first.kv_heads, x.dtype)
        for layer, cache in zip(self._layers, caches, strict=True):
            query, key, value = layer.project(x, (len(tokens),), cosine, sine)  # [B, heads, D]
            write_step(cache, key, value, slots)
            keys, values = cache.keys[:, :, :rung], cache.values[:, :, :rung]
            x = layer.finish(x, attend_step(query, keys, values, bias, layer.scaling))
        return self._head(self._norm(x))


class _Norm:
    """RMSNorm: in float32, rounded to the weights' type before it is scaled, as Hugging Face does."""

    def __init__(self, module: Any) -> None:
        self._weight: Tensor = module.weight
        self._epsilon: float = module.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._epsilon)
        return self._weight * (wide * scale).to(x.dtype)


class _Layer:
    """One decoder layer's weights, packed."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.head_dim: int = attention.head_dim
        self.scaling: float = attention.scaling
        self.kv_heads = attention.k_proj.weight.shape[0] // self.head_dim
        self._heads = attention.q_proj.weight.shape[0] // self.head_dim
        self._qkv = _fuse(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = _fuse(attention.o_proj)
        self._gate_up = _fuse(mlp.gate_proj, mlp.up_proj)
        self._down = _fuse(mlp.down_proj)
        self._activation = mlp.act_fn
        self._input_norm = _Norm(layer.input_layernorm)
        self._mlp_norm = _Norm(layer.post_attention_layernorm)
        self._query_norm = _Norm(attention.q_norm) if hasattr(attention, "q_norm") else None
        self._key_norm = _Norm(attention.k_norm) if hasattr(attention, "k_norm") else None

    def project(
        self, x: Tensor, size: tuple[int, ...], cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [n, H] → rotated query, rotated key and value, each [*size, heads, D]."""
        qkv = self._qkv(self._input_norm(x)).view(*size, -1, self.head_dim)
        turned = self._heads + self.kv_heads
        qk, value = qkv[..., :turned, :], qkv[..., turned:, :]
        if self._query_norm and self._key_norm:
            query, key = qk[..., : self._heads, :], qk[..., self._heads :, :]
            qk = torch.cat((self._query_norm(query), self._key_norm(key)), dim=-2)
        # The halves swapped: rotate_half, its sign apart.
        qk = torch.addcmul(qk * cosine, qk.roll(self.head_dim // 2, dims=-1), sine)
        return qk[..., : self._heads, :], qk[..., self._heads :, :], value

    def finish(self, x: Tensor, context: Tensor) -> Tensor:
        """Residual x [n, H] and attention's context [n, heads · D] → the layer's output [n, H]."""
        x = x + self._out(context)
        gate, up = self._gate_up(self._mlp_norm(x)).chunk(2, dim=-1)
        out: Tensor = self._down(self._activation(gate) * up)
        return x + out


def _fuse(*linears: Any) -> Any:
    """Linears of one input as one: their outputs side by side."""
    weight = torch.cat([linear.weight for linear in linears]) if len(linears) > 1 else linears[0].weight
    biases = [linear.bias for linear in linears]
    bias = None if biases[0] is None else torch.cat(biases)
    return pack(weight, bias, STEP_ROWS)
