"""Any Hugging Face causal language model over the static cache, its own forward unchanged.

What is ours stands behind transformers' interfaces: a cache whose layers write one token per row at
that row's own slot, a mask computed from those slots, and attention over grouped heads in place.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from staticjob.engine.grouped_attention import attend
from staticjob.engine.kv_cache import LayerCache, write_prompt, write_step

NAME = "staticjob-decode"
# The pass under way: its positions [B, L or 1], for transformers gives a mask function offsets only, and
# the index of each row's last token [B].
_pass = threading.local()


def register() -> str:
    """Make attention and mask known to transformers; returns the name to load models with."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    return NAME


def supports(model: Any) -> bool:
    """Whether the model takes its cache and attention from outside."""
    return bool(getattr(model, "_can_compile_fullgraph", False)) and bool(
        getattr(model, "_supports_attention_backend", False) or getattr(model, "_supports_sdpa", False)
    )


class HfDecoder:
    """`model` loaded with the attention `register()` names."""

    def __init__(self, model: Any) -> None:
        self._model = model
        head = model.get_output_embeddings()
        self.vocabulary: int = head.weight.shape[0]
        head.register_forward_pre_hook(_take_last)

    def prefill(self, ids: Tensor, last: Tensor, caches: Sequence[LayerCache]) -> Tensor:
        """ids [n, L], last [n]: each row's last position → logits [n, V]; fills slots 0 … L - 1."""
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        _pass.last = last
        return self._forward(ids, positions, [_PromptLayer(cache) for cache in caches])

    def step(self, tokens: Tensor, slots: Tensor, rung: int, caches: Sequence[LayerCache]) -> Tensor:
        """tokens [B] at slots [B] → logits [B, V], attending over the first `rung` slots."""
        _pass.last = torch.zeros_like(slots)
        layers = [_StepLayer(cache, slots, rung) for cache in caches]
        return self._forward(tokens[:, None], slots[:, None], layers)

    def _forward(self, ids: Tensor, positions: Tensor, layers: Sequence[CacheLayerMixin]) -> Tensor:
        _pass.positions = positions
        logits: Tensor = self._model(
            input_ids=ids, position_ids=positions, past_key_values=Cache(layers=list(layers)), use_cache=True
        ).logits
        return logits[:, -1]


def _take_last(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Before the vocabulary's product: keep each row's last position only, [n, L, H] → [n, 1, H]."""
    hidden, last = arguments[0], _pass.last
    return (hidden[torch.arange(len(last), device=last.device), last][:, None], *arguments[1:])


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of the static cache as transformers sees it."""

    is_compileable = True
    is_sliding = False

    def __init__(self, cache: LayerCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache = cache
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocated with the cache."""

    def get_seq_length(self) -> int:
        """Zero: positions are given with every pass."""
        return 0

    def get_max_length(self) -> int:
        return self._cache.keys.shape[2]


class _PromptLayer(_Layer):  # type: ignore[no-untyped-call]
    """Prompts stand at the left: they attend over each other and over nothing else."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        write_prompt(self._cache, key_states, value_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0


class _StepLayer(_Layer):  # type: ignore[no-untyped-call]
    """One token per row, each at its own slot."""

    def __init__(self, cache: LayerCache, slots: Tensor, rung: int) -> None:
        super().__init__(cache)
        self._slots, self._rung = slots, rung

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        write_step(self._cache, key_states[:, :, 0], value_states[:, :, 0], self._slots)
        return self._cache.keys[:, :, : self._rung], self._cache.values[:, :, : self._rung]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._rung, 0


def _mask(*, kv_length: int, mask_function: Any, **_: Any) -> Tensor:
    """Bool mask [B, 1, L, C], True where the model's own rule (causal, sliding window) lets a query look."""
    positions: Tensor = _pass.positions
    rows = torch.arange(len(positions), device=positions.device)[:, None, None, None]
    slots = torch.arange(kv_length, device=positions.device)[None, None, None, :]
    allowed: Tensor = mask_function(rows, torch.zeros_like(rows), positions[:, None, :, None], slots)
    return allowed


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [B, heads, L, D], key and value [B, kv_heads, C, D] → context [B, L, heads, D]."""
    if query.shape[2] > 1 and softcap is None:
        context, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **{**kwargs, "dropout": 0.0}
        )
        return context, None
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, key, value, attention_mask, scaling, softcap), None
