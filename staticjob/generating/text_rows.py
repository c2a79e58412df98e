"""Rows as generation knows them: prompts in rectangles, texts, and tails on their way to vLLM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from staticjob.engine.decode_batch import Prompts
from staticjob.engine.sampling import stream_keys
from staticjob.engine.shape import Shape

Ids = NDArray[np.int32]
Chances = NDArray[np.float32]
NO_IDS: Ids = np.empty(0, np.int32)
NO_CHANCES: Chances = np.empty(0, np.float32)


@dataclass(frozen=True)
class RowKey:
    """Which row, and which of its samples."""

    file: int
    row: int
    sample: int = 0


@dataclass(frozen=True, eq=False)
class TextRow:
    """One answered row. `finish` is stop, length or error; an error has a reason and no text."""

    key: RowKey
    n_prompt: int
    n_tokens: int  # generated, the one that ended it included
    text: str
    finish: str
    engine: str  # static, vllm or static+vllm
    n_handed: int = 0  # tokens it had when vLLM took it up
    tokens: Ids | None = None  # [n_tokens], where the job asks for them
    logprobs: Chances | None = None  # [n_tokens], where the job asks for them
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Tail:
    """A row that vLLM is to finish: its prompt and what the static engine generated of it, if anything."""

    key: RowKey
    prompt: Ids
    tokens: Ids
    logprobs: Chances  # [tokens], empty where the job does not ask for them


@dataclass(frozen=True, eq=False)
class PromptBatch:
    """Prompts of one rectangle: keys [n] with n <= B, ids [B, L], lengths [B], 0 for a dummy row.

    `index` is the batch's number in its chunk.
    """

    keys: tuple[RowKey, ...]
    shape: Shape
    ids: Ids
    lengths: Ids
    index: int = 0

    def prompts(self, seed: int = 0) -> Prompts:
        """As the decoder takes them, each row with its random stream."""
        keys = np.zeros(self.shape.batch, np.int64)
        files, rows, samples = zip(*((k.file, k.row, k.sample) for k in self.keys), strict=True)
        keys[: len(self.keys)] = stream_keys(seed, files, rows, samples)
        return Prompts(self.shape, self.ids, self.lengths, keys)

    def tail(self, row: int, tokens: Ids = NO_IDS, logprobs: Chances = NO_CHANCES) -> Tail:
        """Row number `row` for vLLM, with what it has so far."""
        # Copies: a view would hold the whole rectangle.
        prompt = self.ids[row, : self.lengths[row]].copy()
        return Tail(self.keys[row], prompt, tokens.copy(), logprobs.copy())
