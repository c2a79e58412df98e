"""One layer of a Llama-like decoder over static buffers (CPU, float32).

The mathematics is the Hugging Face layer's: norm, attention, residual, norm, gated feed-forward, residual.
Products are written where the next pass reads them, and what ends a branch is added onto the residual in
place; only attention allocates. The weights stay where the model has them: these models are large.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from staticjob.engine import workspace
from staticjob.engine.in_place import activate


class PreNormLayer(nn.Module):
    """Runs `layer`, a decoder layer of Llama, Mistral, Qwen2 or Qwen3."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.attention, self.mlp = layer.self_attn, layer.mlp
        self.attention_norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        # Qwen3 norms every head of query and key.
        self.head_norms = [getattr(self.attention, name, None) for name in ("q_norm", "k_norm")]

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None,
        position_embeddings: tuple[Tensor, Tensor],
        **_: Any,
    ) -> Tensor:
        """hidden [B, L, H], written over; attention_mask [B, 1, L, L], None where attention is causal alone;
        position_embeddings: cosine and sine, each [1, L, D] → [B, L, H]
        """
        x = hidden.view(-1, hidden.shape[-1])
        context = self._attend(
            _norm(self.attention_norm, x), hidden.shape[:2], attention_mask, position_embeddings
        )
        x.addmm_(context, self.attention.o_proj.weight.t())
        normed = _norm(self.mlp_norm, x)
        gate, up = (_product(name, normed, getattr(self.mlp, f"{name}_proj")) for name in ("gate", "up"))
        x.addmm_(activate(self.mlp.act_fn, gate).mul_(up), self.mlp.down_proj.weight.t())
        return hidden

    def _attend(
        self, x: Tensor, size: torch.Size, mask: Tensor | None, angles: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Normed x [B · L, H] → what each position takes from those it looks at, [B · L, heads · D]."""
        attention = self.attention
        query, key, value = (
            _product(name, x, linear).view(*size, -1, attention.head_dim)
            for name, linear in (("q", attention.q_proj), ("k", attention.k_proj), ("v", attention.v_proj))
        )
        query, key = (
            _turned(f"turned {name}", heads, norm, angles)
            for name, heads, norm in zip("qk", (query, key), self.head_norms, strict=True)
        )
        context = functional.scaled_dot_product_attention(
            query,
            key,
            value.transpose(1, 2).contiguous(),
            attn_mask=mask,
            is_causal=mask is None,
            scale=attention.scaling,
            enable_gqa=True,
        )  # [B, heads, L, D], laid out as [B, L, heads, D]
        return context.transpose(1, 2).reshape(len(x), -1)


def _product(name: str, x: Tensor, linear: nn.Linear) -> Tensor:
    """x [n, in] → [n, out], in the buffer `name`."""
    out = workspace.take(name, len(x), linear.out_features)
    if linear.bias is None:
        return torch.mm(x, linear.weight.t(), out=out)
    return torch.addmm(linear.bias, x, linear.weight.t(), out=out)


def _norm(norm: Any, x: Tensor) -> Tensor:
    """RMSNorm of x [n, H], in a buffer."""
    return torch.mul(x, _rms_scale(norm, x), out=workspace.take("normed", *x.shape)).mul_(norm.weight)


def _rms_scale(norm: Any, x: Tensor) -> Tensor:
    """1 / √(mean square + epsilon) over the last dimension, which is kept with size 1."""
    scale: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return scale.square_().div_(x.shape[-1]).add_(norm.variance_epsilon).rsqrt_()


def _turned(name: str, heads: Tensor, norm: Any, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Heads [B, L, heads, D], normed if the model does so, turned by their positions' angles
    → [B, heads, L, D] in the buffer `name`.

    Head by head in one piece, as attention's kernel reads them: that is worth a third of its time.
    """
    if norm is not None:
        heads.mul_(_rms_scale(norm, heads)).mul_(norm.weight)
    batch, length, count, width = heads.shape
    turned = workspace.take(name, batch * length, count * width).view(batch, count, length, width)
    heads = heads.transpose(1, 2)
    cosine, sine = (t[:, None] for t in angles)
    torch.mul(heads, cosine, out=turned)
    half = width // 2
    turned[..., :half].addcmul_(heads[..., half:], sine[..., :half], value=-1)
    turned[..., half:].addcmul_(heads[..., :half], sine[..., half:])
    return turned
