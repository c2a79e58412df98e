"""A causal model's log-probabilities of given tokens, without ever holding all logits at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from staticjob.engine.logit_chunks import chunk_positions
from staticjob.engine.packed_linear import pack


class PackedHead(nn.Module):
    """A vocabulary's linear layer laid out for one chunk of positions (CPU, float32).

    Plain, a chunk's product is bound by reordering the weight before it reads it: half as fast (MKL, Zen 3,
    85 positions of SmolLM2-135M).
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.out_features = head.out_features
        self._product = pack(head.weight, head.bias, chunk_positions("cpu", head.out_features))

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [n, D] → [n, V]"""
        return self._product(hidden)


def lay_out_head(model: Any) -> None:
    """Run a causal model's vocabulary as `PackedHead`."""
    model.set_output_embeddings(PackedHead(model.get_output_embeddings()))


def last_hidden(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """A causal model's last hidden states [B, L, D], before its vocabulary."""
    hidden: Tensor = model.base_model(ids, attention_mask=mask).last_hidden_state
    return hidden


def logits(model: Any, hidden: Tensor, tokens: Sequence[int] | None = None) -> Tensor:
    """Hidden states [n, D] → logits [n, V] in float32, or of `tokens` alone; capped where the model caps."""
    head = model.get_output_embeddings()
    if tokens is None:
        values: Tensor = head(hidden).float()
    else:
        # One row at a time: a list of indices would be copied to the device, which no graph can capture.
        weight = torch.stack([head.weight[t] for t in tokens])
        bias = None if head.bias is None else torch.stack([head.bias[t] for t in tokens])
        values = torch.nn.functional.linear(hidden, weight, bias).float()
    cap = getattr(model.config, "final_logit_softcapping", None)
    return torch.tanh(values / cap) * cap if cap else values


def target_logprobs(model: Any, hidden: Tensor, targets: Tensor, scored: Tensor) -> tuple[Tensor, Tensor]:
    """Of each target its log-probability, and whether no token is likelier: both [n], 0 where not scored.

    hidden [n, D], targets [n], scored [n] bool. Positions that are scored are moved to the front and
    computed a chunk of fixed size at a time, so that a position's bits do not depend on how many there are.
    """
    n, kind = len(targets), hidden.device.type
    step = min(n, chunk_positions(kind, model.get_output_embeddings().out_features))
    order = torch.argsort(scored.logical_not(), stable=True)
    # A captured graph cannot ask how many there are.
    wanted = n if kind == "cuda" else int(scored.sum())
    logprobs = torch.zeros(n, dtype=torch.float32, device=hidden.device)
    greedy = torch.zeros(n, dtype=torch.bool, device=hidden.device)
    for begin in range(0, wanted, step):
        # The last chunk reaches back, so that it is full: some of its positions are computed twice.
        at = order[min(begin, n - step) :][:step]
        values, wanted_tokens = logits(model, hidden[at]), targets[at]  # [step, V], [step]
        logprobs[at] = -torch.nn.functional.cross_entropy(values, wanted_tokens, reduction="none")
        own = values.gather(1, wanted_tokens[:, None])[:, 0]
        greedy[at] = own == values.amax(dim=1)
    return torch.where(scored, logprobs, 0.0), greedy & scored
