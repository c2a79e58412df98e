"""What a sequence classifier's config.json says about its outputs. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from staticjob.errors import ConfigError
from staticjob.models.model_files import model_config

MULTI_LABEL = "multi_label_classification"


def classifier_config(model_dir: Path, task: str) -> dict[str, Any]:
    """config.json of a sequence classifier; ConfigError when the model says that it is something else."""
    config = model_config(model_dir)
    classes = config.get("architectures") or []
    if not any("ForSequenceClassification" in name for name in classes):
        found = ", ".join(classes) or "no architecture"
        raise ConfigError(
            f"model {model_dir}: task {task} needs a sequence classifier, config.json names {found}"
        )
    if config.get("is_encoder_decoder"):
        raise ConfigError(
            f"model {model_dir}: {classes[0]} has a decoder behind its encoder; task {task} runs "
            "encoders and decoder-only models"
        )
    return config


def require_one_output(model_dir: Path, task: str) -> dict[str, Any]:
    """config.json of a sequence classifier that gives one number a row; ConfigError for any other."""
    config = classifier_config(model_dir, task)
    labels = config.get("id2label")
    outputs = len(labels) if labels else int(config.get("num_labels") or 2)  # 2, as transformers has it
    if outputs != 1:
        raise ConfigError(
            f"model {model_dir}: gives {outputs} numbers a row where task {task} needs one; use task classify"
        )
    return config


def labels_of(config: Mapping[str, Any], model_dir: Path) -> tuple[str, ...]:
    """Names of the labels in the model's order; ConfigError when config.json does not name them all."""
    labels = config.get("id2label")
    numbers = labels if isinstance(labels, dict) and all(map(str.isdecimal, labels)) else {}
    named = {int(index): str(name) for index, name in numbers.items()}
    if not named or sorted(named) != list(range(len(named))):
        raise ConfigError(
            f"model {model_dir}: config.json does not name its labels; give id2label a name for every "
            "output from 0 on"
        )
    return tuple(named[i] for i in range(len(named)))
