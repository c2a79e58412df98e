"""One layer of a BERT-like encoder as seven passes over static buffers (CPU, float32).

The mathematics is the Hugging Face layer's: attention, residual, norm, feed-forward, residual, norm.
Query, key and value are one product; a residual and its bias are laid down first and the product is
added onto them; nothing but attention's and the norms' outputs is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from staticjob.engine import workspace
from staticjob.engine.in_place import activate


@dataclass(frozen=True)
class PostNormParts:
    """Where a Hugging Face layer keeps what `PostNormLayer` needs."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    attention_output: nn.Linear
    attention_norm: nn.LayerNorm
    up: nn.Linear
    activation: Any
    down: nn.Linear
    output_norm: nn.LayerNorm
    head_dim: int
    scaling: float


class PostNormLayer(nn.Module):
    """Weights are stored [in, out], as the product reads them: up to 10% faster than transposing views
    for a few hundred rows, and equal beyond (measured with MKL on Zen 3, where oneDNN's prepacked
    product was 2% to 8% slower than MKL writing into a buffer)."""

    def __init__(self, parts: PostNormParts) -> None:
        super().__init__()
        self.parts = parts
        qkv = [parts.query, parts.key, parts.value]
        self.qkv_weight = torch.cat([p.weight for p in qkv]).t().contiguous()  # [H, 3H]
        self.qkv_bias = torch.cat([p.bias for p in qkv])
        self.attention_weight = parts.attention_output.weight.t().contiguous()  # [H, H]
        self.up_weight = parts.up.weight.t().contiguous()  # [H, I]
        self.down_weight = parts.down.weight.t().contiguous()  # [I, H]

    def forward(self, hidden: Tensor, attention_mask: Tensor, *_: Any, **__: Any) -> Tensor:
        """hidden [B, L, H], attention_mask additive [B, 1, 1, L] → [B, L, H]"""
        parts = self.parts
        batch, length, width = hidden.shape
        rows = batch * length
        x = hidden.view(rows, width)
        qkv = workspace.take("qkv", rows, self.qkv_weight.shape[1])
        torch.addmm(self.qkv_bias, x, self.qkv_weight, out=qkv)
        query, key, value = qkv.view(batch, length, 3, -1, parts.head_dim).permute(2, 0, 3, 1, 4)
        context = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=parts.scaling
        )  # [B, heads, L, head_dim], laid out as [B, L, heads, head_dim]
        context = context.transpose(1, 2).reshape(rows, -1)
        y = workspace.take("residual", rows, width)
        torch.add(x, parts.attention_output.bias, out=y)
        y.addmm_(context, self.attention_weight)
        x = parts.attention_norm(y)
        inner = workspace.take("inner", rows, self.up_weight.shape[1])
        torch.addmm(parts.up.bias, x, self.up_weight, out=inner)
        inner = activate(parts.activation, inner)
        torch.add(x, parts.down.bias, out=y)
        y.addmm_(inner, self.down_weight)
        normed: Tensor = parts.output_norm(y)
        return normed.view(batch, length, width)
