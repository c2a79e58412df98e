"""What a batch of growing rows knows about itself, on the device: tokens, counts, who has ended and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticjob.engine.sampling import Sampling, choose


class Finish(IntEnum):
    """Why a row ended; ACTIVE where it has not."""

    ACTIVE = 0
    STOP = 1
    LENGTH = 2
    ERROR = 3


@dataclass(frozen=True)
class Ending:
    """When a row ends beside its cap, and what is kept of its tokens' probabilities."""

    stop_ids: tuple[int, ...] = ()  # end-of-sequence ids unless ignored, and the job's own
    min_new_tokens: int = 0
    logprobs: bool = False


class DecodeState:
    """Static buffers of one batch size; `load` begins a batch, `advance` takes one token per row.

    All of it is device work in fixed shapes, so a captured graph can hold it together with the model.
    """

    def __init__(
        self, batch: int, cap: int, vocabulary: int, sampling: Sampling, ending: Ending, device: torch.device
    ) -> None:
        self.batch, self.cap = batch, cap
        self._sampling, self._ending = sampling, ending

        def zeros(*size: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.tokens = zeros(batch)  # the token each row feeds next
        self.slots = zeros(batch)  # and the cache slot it will stand in, which is its position
        self.counts = zeros(batch)  # tokens generated
        self.limits = zeros(batch)
        self.keys = zeros(batch)
        self.finish = zeros(batch, dtype=torch.int8)
        # One column more than the cap: see advance.
        self.output = zeros(batch, cap + 1)
        self.logprobs = zeros(batch, cap + 1 if ending.logprobs else 0, dtype=torch.float32)
        self.active = zeros(cap)  # rows active at each step; see ActiveRows
        self._step = zeros(1)
        self._stop_ids = torch.tensor(ending.stop_ids, dtype=torch.int64, device=device)
        self._is_stop = zeros(vocabulary, dtype=torch.bool)
        self._is_stop[self._stop_ids] = True

    def load(self, lengths: NDArray[np.int32], limits: NDArray[np.int32], keys: NDArray[np.int64]) -> None:
        """Begin a batch: prompt lengths [B] (0 for a dummy row), tokens allowed [B], random streams [B]."""
        self.slots.copy_(torch.from_numpy(np.maximum(lengths, 1).astype(np.int64)))
        self.limits.copy_(torch.from_numpy(limits.astype(np.int64)))
        self.keys.copy_(torch.from_numpy(keys))
        self.finish.copy_(torch.from_numpy(np.where(lengths > 0, Finish.ACTIVE, Finish.LENGTH)))
        for buffer in (self.tokens, self.counts, self.active, self._step):
            buffer.zero_()

    def advance(self, logits: Tensor) -> None:
        """Take one token per active row from logits [B, V]; ended rows keep what they have."""
        active = self.finish == Finish.ACTIVE
        logits = logits.float()
        raw = logits
        if self._ending.min_new_tokens and len(self._stop_ids):
            early = (self.counts < self._ending.min_new_tokens)[:, None]
            logits = logits.clone()
            logits[:, self._stop_ids] = logits[:, self._stop_ids].masked_fill(early, float("-inf"))
        token = choose(logits, self._sampling, self.keys, self.counts)
        chosen = raw.gather(1, token[:, None])
        self.tokens.copy_(token)
        # An ended row writes behind its last token, where nobody reads.
        self.output.scatter_(1, self.counts[:, None], token[:, None])
        if self._ending.logprobs:
            self.logprobs.scatter_(1, self.counts[:, None], chosen - raw.logsumexp(dim=-1, keepdim=True))
        self.counts += active
        ended = torch.where(self.counts >= self.limits, Finish.LENGTH, Finish.ACTIVE)
        ended = torch.where(self._is_stop[token], Finish.STOP, ended)
        # A row whose numbers overflowed has no next token; the others go on.
        ended = torch.where(chosen.squeeze(1).isfinite(), ended, Finish.ERROR)
        self.finish.copy_(torch.where(active, ended, self.finish))
        self.active.scatter_(0, self._step, (self.finish == Finish.ACTIVE).sum().view(1))
        self._step += 1

    def next_slots(self) -> None:
        """After a decode pass: active rows move to their next slot, ended rows stay where they are."""
        self.slots += self.finish == Finish.ACTIVE

    def end_rows(self, rows: Sequence[int]) -> None:
        """The host found that these active rows have ended (a stop string)."""
        if rows:
            self.finish[torch.tensor(rows, device=self.finish.device)] = Finish.STOP

    @property
    def keeps_logprobs(self) -> bool:
        return self._ending.logprobs
