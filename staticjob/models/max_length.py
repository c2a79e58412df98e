"""How many tokens a row of a job may have, by the job and by its model."""

from __future__ import annotations

from pathlib import Path

from staticjob.config.job import JobConfig
from staticjob.errors import ConfigError
from staticjob.models.model_files import max_positions, model_config, read_object


def max_length(config: JobConfig, model_dir: Path) -> int:
    """The job's token limit, resolved against the model.

    `auto` is the smallest of the positions the model has and the limit its own
    sentence-transformers files name. Rows that generate need positions for their texts too.
    Raises ConfigError for a limit beyond the positions.
    """
    positions = max_positions(model_config(model_dir))
    if positions is not None and config.generate is not None:
        positions -= config.generate.max_new_tokens
        if positions < 1:
            raise ConfigError(
                f"generate.max_new_tokens: {config.generate.max_new_tokens} leaves no position of model "
                f"{config.model.path} for a prompt; give fewer"
            )
    wanted = config.limits.max_length
    if wanted == "auto":
        own = _sentence_limit(model_dir)
        known = [n for n in (positions, own) if n is not None]
        if not known:
            raise ConfigError(
                f"limits.max_length: model {config.model.path} states no limit; give one in the job file"
            )
        return min(known)
    if positions is not None and wanted > positions:
        raise ConfigError(
            f"limits.max_length: {wanted} is beyond the {positions} positions of model "
            f"{config.model.path}{_beside_texts(config)}; give at most {positions}"
        )
    return wanted


def _beside_texts(config: JobConfig) -> str:
    return f" that {config.generate.max_new_tokens} new tokens leave" if config.generate else ""


def _sentence_limit(model_dir: Path) -> int | None:
    path = model_dir / "sentence_bert_config.json"
    if not path.exists():
        return None
    value = read_object(path, "expected").get("max_seq_length")
    return value if isinstance(value, int) and value > 0 else None
