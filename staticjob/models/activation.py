"""What a cross-encoder's own files say is done to its one number. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from staticjob.errors import ConfigError

# Class names of torch.nn to what a score is; only these two are used by published rerankers.
KNOWN = {"Identity": "identity", "Sigmoid": "sigmoid"}


def activation_of(config: Mapping[str, Any], model_dir: Path) -> str:
    """`sigmoid` or `identity`: as sentence-transformers reads config.json; sigmoid where it is silent.

    Raises ConfigError for another function.
    """
    named = (config.get("sentence_transformers") or {}).get("activation_fn")
    named = named or config.get("sbert_ce_default_activation_function") or "torch.nn.Sigmoid"
    activation = KNOWN.get(str(named).rpartition(".")[2])
    if activation is None:
        raise ConfigError(
            f"model {model_dir}: config.json puts {named} on its score; task rerank knows "
            f"{' and '.join(KNOWN)}"
        )
    return activation
