"""Every task's head computes what Hugging Face computes for the row alone, in every architecture and rung."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import job, rectangle, rows
from tiny_tasks import CAUSAL, CLASSIFIERS, LABELS, class_logits, save_causal, save_classifier, token_logprobs

from staticjob.engine import logit_chunks
from staticjob.engine.shape import Shape
from staticjob.engine.static_engine import StaticEngine

LENGTHS = [2, 3, 7, 8, 15, 16, 17, 24, 31, 32]
RUNGS = [Shape(96, 3), Shape(32, 12), Shape(40, 5)]


def classify(**sections: Any) -> Any:
    return job(task="classify", **sections)


def everything(
    engine: StaticEngine, texts: list[list[int]], boundaries: list[int] | None = None
) -> list[dict[str, Any]]:
    """Results of all texts on every rung of the engine, each in its own order of rows."""
    found = []
    for seed, shape in enumerate(engine.shapes):
        order = np.random.default_rng(seed).permutation(len(texts))
        columns: dict[str, Any] = {f.name: [None] * len(texts) for f in engine.fields()}
        for start in range(0, len(texts), shape.batch):
            some = order[start : start + shape.batch]
            ids, lengths, bounds = rectangle([texts[i] for i in some], shape.length, shape.batch, filler=50)
            if boundaries:
                bounds[: len(some)] = [boundaries[i] for i in some]
            result = engine.run(shape, ids, lengths, bounds)
            assert result.finite[: len(some)].all()
            for name, values in result.columns.items():
                for place, i in enumerate(some):
                    columns[name][i] = values[place]
        found.append(columns)
    return found


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_classifiers_equal_the_row_alone(family: str, tmp_path: Path) -> None:
    save_classifier(family, tmp_path)
    texts = rows(LENGTHS)
    expected = class_logits(tmp_path, texts).double().softmax(-1).numpy()
    for columns in everything(StaticEngine(tmp_path, classify(), RUNGS), texts):
        np.testing.assert_allclose(np.stack(columns["scores"]), expected, rtol=2e-5, atol=1e-7)
        assert columns["label"] == [LABELS[i] for i in expected.argmax(1)]
        np.testing.assert_array_equal(columns["score"], np.stack(columns["scores"]).max(1))


@pytest.mark.parametrize("family", CAUSAL)
def test_log_probabilities_equal_the_row_alone(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(logit_chunks.CHUNK_BYTES, "cpu", 4 * 101 * 20)
    save_causal(family, tmp_path)
    texts = rows(LENGTHS)
    boundaries = [1 + i % (n - 1) for i, n in enumerate(LENGTHS)]
    engine = StaticEngine(tmp_path, job(task="logprob", logprob={"token_logprobs": True}), RUNGS)
    expected = token_logprobs(tmp_path, texts)
    for columns in everything(engine, texts, boundaries):
        for i, (text, first) in enumerate(zip(texts, boundaries, strict=True)):
            own = expected[i][first - 1 :]
            tokens = own.gather(1, torch.tensor(text[first:])[:, None])[:, 0].numpy()
            np.testing.assert_allclose(columns["token_logprobs"][i], tokens, atol=2e-5)
            assert columns["logprob"][i] == pytest.approx(tokens.sum(), abs=1e-4)
            assert columns["n_scored"][i] == len(text) - first
            assert columns["is_greedy"][i] == (own.argmax(1).tolist() == text[first:])
            assert columns["perplexity"][i] == pytest.approx(np.exp(-tokens.mean()), rel=1e-4)
