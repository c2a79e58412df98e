"""Attention with grouped-query heads left where they are.

The query heads that share a key-value head are rows of one product per (row, key-value head), so the
cache is read once and never copied out per query head.
"""

from __future__ import annotations

import torch
from torch import Tensor


def additive_mask(mask: Tensor, kv_heads: int, dtype: torch.dtype) -> Tensor:
    """mask [B, C] bool → [B · kv_heads, 1, C]: 0 where a row may look, -inf elsewhere."""
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
    return bias[:, None, :].expand(-1, kv_heads, -1).reshape(-1, 1, mask.shape[1])


def attend_step(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scaling: float) -> Tensor:
    """One token a row: query [B, heads, D], keys and values [B, kv_heads, C, D], bias from
    additive_mask → [B, heads · D].
    """
    batch, kv_heads, _, width = keys.shape
    rows = query.reshape(batch * kv_heads, -1, width)
    scores = torch.baddbmm(bias, rows, keys.flatten(0, 1).transpose(1, 2), alpha=scaling)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return torch.bmm(weights, values.flatten(0, 1)).view(batch, -1)


def attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float, softcap: float | None = None
) -> Tensor:
    """Any number of tokens: query [B, heads, L, D], keys and values [B, kv_heads, C, D], mask bool
    [B, 1, L, C], softcap of the scores (Gemma 2) → [B, L, heads, D].
    """
    batch, heads, length, width = query.shape
    kv_heads = keys.shape[1]
    rows = query.reshape(batch * kv_heads, -1, width)  # [B · kv_heads, groups · L, D]
    scores = torch.bmm(rows, keys.flatten(0, 1).transpose(1, 2)) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(batch, heads, length, -1).masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    context = torch.bmm(weights.view(batch * kv_heads, -1, keys.shape[2]), values.flatten(0, 1))
    return context.view(batch, heads, length, width).transpose(1, 2)
