"""Which tokens end a text, by its model's own files and by the job."""

from __future__ import annotations

import json
from pathlib import Path

from staticjob.config.options import GenerateConfig
from staticjob.errors import ConfigError
from staticjob.models.model_files import model_config, read_json

GENERATION_CONFIG = "generation_config.json"


def stop_ids(model_dir: Path, options: GenerateConfig) -> tuple[int, ...]:
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
