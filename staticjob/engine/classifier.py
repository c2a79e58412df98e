"""A sequence classifier's logits in fixed shapes: its own head, on the token that belongs to the row."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from staticjob.engine import pooling
from staticjob.engine.heads import Inputs


def class_logits(model: Any, inputs: Inputs) -> Tensor:
    """Logits [B, labels] in float32 of a Hugging Face sequence classifier.

    A decoder's head is put on the last unmasked token. transformers looks for the last id that is not the
    pad token, which is wrong where the pad token also ends a text, and refuses batches without one.
    """
    if isinstance(getattr(model, "score", None), nn.Linear):
        hidden = model.base_model(inputs.ids, attention_mask=inputs.mask).last_hidden_state  # [B, L, D]
        logits: Tensor = model.score(pooling.last(hidden, inputs.mask))
    else:
        logits = model(inputs.ids, attention_mask=inputs.mask, **_token_types(model, inputs)).logits
    return logits.float()


def _token_types(model: Any, inputs: Inputs) -> dict[str, Tensor]:
    """Type 1 from a row's boundary on [B, L], for models that tell a second text from the first."""
    takes = "token_type_ids" in inspect.signature(model.forward).parameters
    if not takes or getattr(model.config, "type_vocab_size", 0) < 2:
        return {}
    positions = torch.arange(inputs.ids.shape[1], device=inputs.ids.device)
    boundaries = inputs.boundaries[:, None]
    return {"token_type_ids": ((positions >= boundaries) & (boundaries >= 0)).long()}
