"""Arithmetic of one forward pass, from config.json alone: what the report divides time by.

FLOPs count a multiply-add as two, as Kaplan et al. 2020 (arXiv:2001.08361, table 1) do, and leave
out what is not a matrix product (norms, activations, softmax): under 1% of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from staticjob.models.dimensions import Dimensions


def forward_flops(config: Mapping[str, Any], length: int, batch: int) -> int:
    """FLOPs of one forward pass of [batch, length]: every slot is computed, padding included."""
    d = Dimensions.of(config)
    linear = 2 * d.linear_parameters * batch * length
    attention = 4 * batch * d.heads * d.head_dim * length * length  # scores, then weighted values
    return linear + d.layers * attention


def forward_bytes(config: Mapping[str, Any], length: int, batch: int, item: int = 4) -> int:
    """Least bytes moved to and from memory by one forward pass: each matrix once, each layer's input
    and output once; what a perfect cache would leave. `item` is the element's size in bytes.
    """
    d = Dimensions.of(config)
    slots = batch * length
    activations = slots * d.hidden * (2 * d.layers + 1)
    return item * (d.linear_parameters + activations)
