"""What a causal language model's config.json says about its logits. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from staticjob.errors import ConfigError
from staticjob.models.model_files import model_config

# Settings by which a model's own forward changes its logits in ways that are not run here.
SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")


def require_causal(model_dir: Path, task: str) -> dict[str, Any]:
    """config.json of a causal language model; ConfigError when the model says that it is something else."""
    config = model_config(model_dir)
    classes = config.get("architectures") or []
    if not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in classes):
        found = ", ".join(classes) or "no architecture"
        raise ConfigError(
            f"model {model_dir}: task {task} needs a causal language model, config.json names {found}"
        )
    return config


def causal_config(model_dir: Path, task: str) -> dict[str, Any]:
    """As `require_causal`, of a model whose logits are its last layer's; ConfigError for another."""
    config = require_causal(model_dir, task)
    for name in SCALES:
        if config.get(name, 1) != 1:
            raise ConfigError(
                f"model {model_dir}: its {name} of {config[name]} scales the logits, which task {task} does "
                "not do; use another model"
            )
    return config


def start_token(model_dir: Path) -> int | None:
    """The token a text without a context begins with: the model's first, else the one that ends a text."""
    config = model_config(model_dir)
    for name in ("bos_token_id", "eos_token_id"):
        value = config.get(name)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int):
            return value
    return None
