"""What a job asks of its texts, and what that means for each engine."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from staticjob.config.options import GenerateConfig
from staticjob.errors import ConfigError
from staticjob.models.model_files import model_config, read_json

GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True)
class GenerateOptions:
    """Bounded generation; names and meanings are those of the job file's section `generate`."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    ignore_eos: bool = False
    logprobs: bool = False
    token_ids: bool = False

    @classmethod
    def of(cls, config: GenerateConfig) -> GenerateOptions:
        """As the job file says; the number of samples and the policy's limits are left out."""
        return cls(**{f.name: getattr(config, f.name) for f in fields(cls)})


def stop_ids(model_dir: Path, options: GenerateOptions) -> tuple[int, ...]:
    """Ids that end a row: the model's end-of-sequence ids unless ignored, and the job's own.

    A model names one or several in generation_config.json or config.json. ConfigError for an id that is
    none of the vocabulary's.
    """
    config = model_config(model_dir)
    path = model_dir / GENERATION_CONFIG
    named = [config.get("eos_token_id")]
    if path.is_file():
        named.append(read_json(path, "named by nobody").get("eos_token_id"))
    ids = set(options.stop_token_ids)
    if not options.ignore_eos:
        for value in named:
            ids.update([value] if isinstance(value, int) else value or ())
    vocabulary = (config.get("text_config") or config).get("vocab_size")
    wrong = sorted(i for i in options.stop_token_ids if i < 0 or (vocabulary and i >= vocabulary))
    if wrong:
        raise ConfigError(
            f"generate.stop_token_ids: {json.dumps(wrong)} not among the model's {vocabulary} tokens; "
            "give ids of its tokenizer"
        )
    return tuple(sorted(i for i in ids if not vocabulary or 0 <= i < vocabulary))
