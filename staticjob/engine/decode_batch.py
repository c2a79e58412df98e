"""What goes into a decoder and what comes out of it: one batch of prompts, looks at it, its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from staticjob.engine.active_rows import ActiveRows
from staticjob.engine.shape import Shape
from staticjob.ledger import Ledger


@dataclass(frozen=True)
class Prompts:
    """One rectangle: ids [B, L], lengths [B] (0 for a dummy row), keys [B] from sampling.stream_keys.

    `limits` [B] are the tokens each row may generate, at most the cap, which is the default.
    """

    shape: Shape
    ids: NDArray[np.int32]
    lengths: NDArray[np.int32]
    keys: NDArray[np.int64]
    limits: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class Look:
    """What the host sees of batch `index` after `step` decode passes, `seconds` after it began."""

    index: int
    step: int
    active: int  # rows that go on
    curve: tuple[int, ...]  # rows that went on after each token; the last is `active`
    seconds: float
    tokens: NDArray[np.int64]  # [B, cap + 1]; valid up to counts
    counts: NDArray[np.int64]  # [B]
    finish: NDArray[np.int8]  # [B] of Finish


@dataclass(frozen=True)
class Answer:
    """What an observer of a look wants: rows that have ended (a stop string), and whether to stop here."""

    ended: Sequence[int] = ()
    hand_over: bool = False


@dataclass(frozen=True)
class Generated:
    """One batch: row b generated tokens[b, :counts[b]], its end-of-sequence token included."""

    tokens: NDArray[np.int32]  # [B, cap]
    counts: NDArray[np.int32]  # [B]
    finish: NDArray[np.int8]  # [B] of Finish; ACTIVE for rows that were handed over
    logprobs: NDArray[np.float32] | None  # [B, cap]
    prompts: Ledger  # slots of its prefill
    curve: ActiveRows
    prefill_seconds: float
    decode_seconds: float


def carry_on(look: Look) -> Answer:
    """The observer that wants nothing."""
    return Answer()
