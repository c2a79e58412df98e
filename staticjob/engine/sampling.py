"""The next token of every row, on the device, without the host and without a generator's state.

Random numbers are a function of (job seed, row, sample, position, token): a counter-based stream, so a
row's text does not depend on its batch, its place in it, or on whether its chunk was run before.
Sampling adds Gumbel noise and takes the maximum, which draws exactly from the softmax (Gumbel 1954;
the "Gumbel-max trick"), with temperature and the top-k and top-p filters applied before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# splitmix64 (Steele, Lea and Flood 2014): increment and the two multipliers, as signed 64-bit numbers.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64
# Candidates looked at first for top-p on a CPU: a full sort of the vocabulary costs as much as a layer.
NEAR = 256
BITS = 31


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Temperature 0 is greedy; top_k 0 and top_p 1 filter nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


def stream_keys(
    seed: int, files: Sequence[int], rows: Sequence[int], samples: Sequence[int]
) -> NDArray[np.int64]:
    """One key per row of a batch, from what identifies it: file, row in the file, sample index."""
    columns = np.broadcast_arrays(np.asarray(files), np.asarray(rows), np.asarray(samples))
    key = torch.full(columns[0].shape, seed, dtype=torch.int64)
    for column in columns:
        key = mix(key + torch.from_numpy(column.astype(np.int64)) * GOLDEN + GOLDEN)
    return key.numpy()


def mix(x: Tensor) -> Tensor:
    """splitmix64's finalizer on int64, out of place; products wrap as they do in C."""
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: int64's own repeats the sign."""
    shifted: Tensor = (x >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def exponentials(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Exponential variates, float32 like `tokens` [B, K]; keys [B] and positions [B] int64."""
    counter = mix(keys + (positions + 1) * GOLDEN)[:, None]
    bits = mix(counter + tokens * GOLDEN) & (2**BITS - 1)
    # Exact near 0, where it matters: the smallest variate wins. Never 1, whose logarithm has no end.
    uniform = ((bits.float() + 0.5) * 2.0**-BITS).clamp(max=1 - 2.0**-24)
    return -torch.log1p(-uniform)


def choose(logits: Tensor, sampling: Sampling, keys: Tensor, positions: Tensor) -> Tensor:
    """The next token of each row [B]: logits [B, V] float32, keys [B] and positions [B] int64."""
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    scores, tokens = _candidates(logits / sampling.temperature, sampling)
    noisy = scores - torch.log(exponentials(keys, positions, tokens))
    return tokens.gather(1, noisy.argmax(dim=-1, keepdim=True)).squeeze(1)


def _candidates(scores: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Scores and token ids [B, K] that the filters leave; a filtered candidate scores -inf."""
    vocabulary = scores.shape[1]
    if 0 < sampling.top_k < vocabulary:
        scores, tokens = scores.topk(sampling.top_k, dim=-1)
        if sampling.top_p < 1:
            scores = _nucleus(scores, scores.logsumexp(dim=-1), sampling.top_p)
        return scores, tokens
    if sampling.top_p >= 1:
        return scores, torch.arange(vocabulary, device=scores.device).expand_as(scores)
    whole = scores.logsumexp(dim=-1)
    if scores.device.type == "cpu" and vocabulary > NEAR:
        near, tokens = scores.topk(NEAR, dim=-1)
        if bool(((near.logsumexp(dim=-1) - whole).exp() >= sampling.top_p).all()):
            return _nucleus(near, whole, sampling.top_p), tokens
    scores, tokens = scores.sort(dim=-1, descending=True)
    return _nucleus(scores, whole, sampling.top_p), tokens


def _nucleus(scores: Tensor, whole: Tensor, top_p: float) -> Tensor:
    """Drop what follows the first tokens whose mass reaches top_p; scores [B, K] descending."""
    mass = (scores - whole[:, None]).exp()
    before = mass.cumsum(dim=-1) - mass
    return scores.masked_fill(before >= top_p, float("-inf"))
