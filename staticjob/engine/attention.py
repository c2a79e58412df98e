"""Attention as registered with transformers: the same kernel for every batch of a shape.

transformers drops the mask of a batch that happens to have no padding and then picks another kernel,
so a row's bits would depend on its neighbours. Here a model has a mask for every batch or for none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

NAME = "staticjob"


def static_mask(*, attention_mask: torch.Tensor, mask_function: Any, **kwargs: Any) -> torch.Tensor | None:
    """What is added to the scores, [B, 1, 1, L], or for other patterns where a query may look, [B, 1, L, L].

    attention_mask: [B, L] bool. A plainly causal model has none: its kernel is causal by itself, and
    padding stands behind a row, where no token of it looks.
    """
    if mask_function is causal_mask_function:
        return None
    if mask_function is bidirectional_mask_function:
        added = torch.zeros(attention_mask.shape, dtype=kwargs["dtype"], device=attention_mask.device)
        return added.masked_fill_(~attention_mask, float("-inf"))[:, None, None, :]
    kwargs["allow_is_causal_skip"] = kwargs["allow_is_bidirectional_skip"] = False
    mask = sdpa_mask(attention_mask=attention_mask, mask_function=mask_function, **kwargs)
    assert mask is not None
    return mask


def register(config: Mapping[str, Any]) -> str:
    """Make both known to transformers; returns the attention to load a model of this config.json with.

    Scores that are capped (Gemma 2) need Hugging Face's own eager attention: the fused one leaves it out.
    """
    if config.get("attn_logit_softcapping"):
        return "eager"
    AttentionInterface.register(NAME, sdpa_attention_forward)
    AttentionMaskInterface.register(NAME, static_mask)
    return NAME
