"""Sampling: exact distributions, and random streams that belong to rows, not to batches."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_models
import torch
from scipy.stats import chisquare, kstest

from staticjob.config.job import ModelConfig
from staticjob.engine import sampling
from staticjob.engine.decode import StaticDecoder
from staticjob.engine.decode_batch import Prompts
from staticjob.engine.sampling import GOLDEN, Sampling, choose, exponentials, mix, stream_keys
from staticjob.engine.shape import Shape

DRAWS = 20_000


def drawn(logits: torch.Tensor, settings: Sampling) -> np.ndarray:
    """How often each token is chosen over DRAWS rows."""
    keys = torch.from_numpy(stream_keys(11, [0] * DRAWS, range(DRAWS), [0] * DRAWS))
    tokens = choose(logits.expand(DRAWS, -1), settings, keys, torch.zeros(DRAWS, dtype=torch.int64))
    return np.bincount(tokens.numpy(), minlength=logits.shape[0])


def test_mix_is_splitmix64():
    # The first outputs of the reference implementation seeded with 1234567.
    state = 1234567 + torch.arange(1, 4) * GOLDEN
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(x) % 2**64 for x in mix(state)] == expected


def test_variates_are_exponential_and_differ_by_key_position_and_token():
    keys = torch.from_numpy(stream_keys(3, [0] * 50, range(50), [0] * 50))
    tokens = torch.arange(200).expand(50, -1)
    first = exponentials(keys, torch.zeros(50, dtype=torch.int64), tokens)
    second = exponentials(keys, torch.ones(50, dtype=torch.int64), tokens)
    assert kstest(first.numpy().ravel(), "expon").pvalue > 1e-3
    assert len(np.unique(torch.cat([first, second]).numpy())) > 19_990
    assert abs(np.corrcoef(first.numpy().ravel(), second.numpy().ravel())[0, 1]) < 0.05


def test_sampling_at_a_temperature_draws_from_the_softmax():
    logits = torch.tensor([2.0, 1.0, 0.5, -1.0, 0.0])
    expected = (logits / 0.7).softmax(-1).numpy().astype(np.float64)
    seen = drawn(logits, Sampling(temperature=0.7))
    assert chisquare(seen, expected / expected.sum() * DRAWS).pvalue > 1e-3


def test_top_k_draws_from_the_k_best_alone():
    logits = torch.tensor([2.0, 1.0, 0.5, -1.0, 0.0])
    seen = drawn(logits, Sampling(temperature=1.0, top_k=2))
    expected = logits[:2].softmax(-1).numpy().astype(np.float64)
    assert seen[2:].sum() == 0
    assert chisquare(seen[:2], expected / expected.sum() * DRAWS).pvalue > 1e-3


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 1), (0.6, 2), (0.84, 2), (0.95, 3), (1e-9, 1)])
def test_top_p_keeps_the_fewest_best_tokens_that_reach_it(top_p, kept):
    logits = torch.tensor([0.05, 0.55, 0.1, 0.3]).log()
    order = [1, 3, 2, 0]
    seen = drawn(logits, Sampling(temperature=1.0, top_p=top_p))
    assert sorted(np.flatnonzero(seen).tolist()) == sorted(order[:kept])


def test_top_p_over_a_large_vocabulary_is_the_same_with_and_without_the_short_cut(monkeypatch):
    torch.manual_seed(0)
    logits = torch.randn(16, 2000) * torch.tensor([0.1, 6.0]).repeat(8)[:, None]
    keys = torch.from_numpy(stream_keys(5, [0] * 16, range(16), [0] * 16))
    for rows in (slice(0, 16), slice(1, 16, 2)):  # flat rows need the full sort, peaked rows do not
        chosen = []
        for near in (sampling.NEAR, 10**9):
            monkeypatch.setattr(sampling, "NEAR", near)
            at = torch.full_like(keys[rows], 7)
            chosen.append(choose(logits[rows], Sampling(temperature=1.0, top_p=0.9), keys[rows], at))
        assert (chosen[0] == chosen[1]).all()


def test_temperature_zero_is_greedy():
    logits = torch.randn(8, 50)
    keys = torch.zeros(8, dtype=torch.int64)
    assert (choose(logits, Sampling(), keys, keys) == logits.argmax(-1)).all()


def test_stream_keys_differ_by_seed_file_row_and_sample():
    base = stream_keys(1, [0], [5], [0])
    others = [
        stream_keys(2, [0], [5], [0]),
        stream_keys(1, [1], [5], [0]),
        stream_keys(1, [0], [6], [0]),
        stream_keys(1, [0], [5], [1]),
        stream_keys(1, [5], [0], [0]),
    ]
    assert len({int(k[0]) for k in [base, *others]}) == 6
    assert (stream_keys(1, [0, 1], [5, 5], [0, 0])[:1] == base).all()


def test_a_sampled_text_does_not_depend_on_batch_place_or_neighbours(tmp_path):
    directory = tiny_models.save("llama", tmp_path / "model")
    shapes = [Shape(16, 4), Shape(16, 2)]
    settings = Sampling(temperature=1.0, top_p=0.95)
    engine = StaticDecoder(directory, ModelConfig(path=str(directory)), shapes, 20, settings, lanes=1)
    rows = tiny_models.prompts([6, 9, 12, 6])
    keys = stream_keys(42, [0] * 4, [10, 11, 12, 10], [0, 0, 0, 1])
    rows[3] = rows[0]  # a second sample of the first row
    ids, lengths = tiny_models.rectangle(rows, 16, 4)
    back = slice(None, None, -1)
    batches = [
        Prompts(shapes[0], ids, lengths, keys),
        Prompts(shapes[0], ids[back].copy(), lengths[back].copy(), keys[back].copy()),
        Prompts(shapes[1], ids[2:4], lengths[2:4], keys[2:4]),
    ]
    together, swapped, fewer = engine.run(batches)
    assert (together.tokens == swapped.tokens[back]).all()
    assert (fewer.tokens == together.tokens[2:4]).all()
    assert (together.tokens[0] != together.tokens[3]).any()
