"""What a model's sentence-transformers files say about prompts, pooling and normalising. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from staticjob.config.options import EmbedConfig
from staticjob.errors import ConfigError
from staticjob.models.model_files import read_json, read_object

# sentence-transformers' names for the poolings this engine has.
POOLINGS = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
# Older files hold one flag per mode instead of `pooling_mode`.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Embedding:
    """How token vectors become one vector."""

    pooling: str
    normalize: bool


def embedding_of(model_dir: Path, wanted: EmbedConfig) -> Embedding:
    """Resolve `auto` from modules.json; without one: mean pooling, not normalised.

    Raises ConfigError when an `auto` cannot be honoured: a module (Dense, …) or pooling mode that this
    engine does not run would silently give other vectors than the model's authors published.
    """
    path = model_dir / "modules.json"
    if "auto" not in (wanted.pooling, wanted.normalize) or not path.is_file():
        return _choose(wanted, "mean", False)
    pooling, normalize = "mean", False
    modules = read_json(path, "expected")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ConfigError(f"model file {path}: not a list of modules; restore it")
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            pooling = _pooling(model_dir / str(module["path"]) / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer" or module.get("path"):
            raise ConfigError(
                f"model {model_dir}: modules.json has a module {kind!r} at {module.get('path')!r} that this "
                "engine does not run; set embed.pooling and embed.normalize to do without it"
            )
    return _choose(wanted, pooling, normalize)


def prompt_of(model_dir: Path, wanted: EmbedConfig) -> str:
    """What is put before every text: the job's own prompt, or the model's that it names, or its default.

    Raises ConfigError for a prompt the model does not have, and for a model that pools without its prompt.
    """
    prompt = wanted.prompt
    path = model_dir / "config_sentence_transformers.json"
    if prompt is None:
        settings = read_object(path, "expected") if path.is_file() else {}
        prompts = settings.get("prompts") or {}
        name = settings.get("default_prompt_name") if wanted.prompt_name == "auto" else wanted.prompt_name
        if name is not None and name not in prompts:
            known = ", ".join(sorted(prompts)) or "none"
            raise ConfigError(
                f"embed.prompt_name: model {model_dir} has no prompt {name!r} (it has {known}); "
                "name one of them or give embed.prompt"
            )
        prompt = str(prompts[name]) if name is not None else ""
    if prompt and not _pools_prompt(model_dir):
        raise ConfigError(
            f"model {model_dir}: its pooling leaves the prompt's tokens out, which this engine does not; "
            "set embed.prompt to '' to do without"
        )
    return prompt


def _pools_prompt(model_dir: Path) -> bool:
    path = model_dir / "1_Pooling" / "config.json"
    return not path.is_file() or read_object(path, "expected").get("include_prompt", True) is not False


def _choose(wanted: EmbedConfig, pooling: str, normalize: bool) -> Embedding:
    """What the job says, else what the model says."""
    return Embedding(
        pooling if wanted.pooling == "auto" else wanted.pooling,
        normalize if wanted.normalize == "auto" else wanted.normalize,
    )


def _pooling(path: Path) -> str:
    config: dict[str, Any] = read_json(path, "named by modules.json")
    mode = config.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else list(mode or [])
    if not modes:
        modes = [name for flag, name in FLAGS.items() if config.get(flag)] or ["mean"]
    if len(modes) == 1 and modes[0] in POOLINGS:
        return POOLINGS[modes[0]]
    raise ConfigError(
        f"model file {path}: pooling {'+'.join(modes)} is not one of {', '.join(POOLINGS)}; "
        "set embed.pooling and embed.normalize to choose another"
    )
