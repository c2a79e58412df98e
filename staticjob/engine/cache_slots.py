"""How many slots a row of the static cache has, and the rungs a step attends over. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# Slots between two cache rungs. A CPU pays nothing for a rung; on a GPU each one is a captured graph.
RUNG_SLOTS = {"cpu": 32, "cuda": 128}
# Products over an odd number of slots are slower.
SLOT_MULTIPLE = 16
# Slots of one prefill product: enough to keep a core, or a GPU, busy.
PREFILL_SLOTS = {"cpu": 4_096, "cuda": 65_536}


def cache_slots(prompt: int, cap: int) -> int:
    """Slots of a row whose prompt is padded to `prompt` and grows by at most `cap` tokens.

    The last generated token is never fed back, so it needs no slot.
    """
    return _round_up(prompt + cap - 1, SLOT_MULTIPLE)


def cache_rungs(prompt: int, cap: int, device: str) -> tuple[int, ...]:
    """Slots attended over, ascending; the last is cache_slots. Empty where no token is ever fed back."""
    if cap == 1:
        return ()
    last, step = cache_slots(prompt, cap), RUNG_SLOTS[device]
    return (*range(_round_up(prompt + 1, step), last, step), last)


def prefill_slices(lengths: NDArray[np.int32], prompt: int, device: str) -> Iterator[tuple[slice, int]]:
    """Rows of one prefill product and the slots that each of them takes, for lengths [B] padded to `prompt`.

    A GPU computes the rectangle as it is. A CPU runs any length as fast, and the rows of a batch stand in
    order of length: there a product ends with the longest of its own rows.
    """
    rows = max(1, PREFILL_SLOTS[device] // prompt)
    for first in range(0, len(lengths), rows):
        part = slice(first, first + rows)
        yield part, max(1, int(lengths[part].max())) if device == "cpu" else prompt


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
