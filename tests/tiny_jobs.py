"""Small generating jobs: a seeded checkpoint whose tokens are characters, prompts of random characters."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import tiny_models
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from staticjob import storage
from staticjob.config.job import JobConfig
from staticjob.config.job_file import fill_date, validate_job

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def letter(token: int) -> str:
    return chr(33 + token)


def token(character: str) -> int:
    return ord(character) - 33


def save(family: str, directory: Path, *, bos: bool = False) -> Path:
    """A checkpoint with a tokenizer: token i is the character 33 + i; with `bos`, token 1 comes first."""
    tiny_models.save(family, directory)
    vocabulary = {letter(i): i for i in range(tiny_models.VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="!"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if bos:
        start = letter(1)
        tokenizer.post_processor = processors.TemplateProcessing(f"{start} $A", None, [(start, 1)])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": letter(1),
        "chat_template": TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def prompts(count: int, shortest: int = 3, longest: int = 30, seed: int = 0) -> list[str]:
    """Random characters, neither the tokens 0 to 2 nor quotes."""
    rng = np.random.default_rng(seed)
    usable = [letter(i) for i in range(3, 90) if letter(i) not in '"\\']
    return ["".join(rng.choice(usable, n)) for n in rng.integers(shortest, longest + 1, count)]


def write(uri: str, rows: list[dict[str, Any]], files: int = 2) -> None:
    """Rows as JSON Lines, dealt out in order to `files` files."""
    per_file = -(-len(rows) // files)
    for number in range(-(-len(rows) // per_file)):
        lines = [json.dumps(row) for row in rows[number * per_file : (number + 1) * per_file]]
        storage.put(f"{uri}/p{number}.jsonl", "\n".join(lines).encode())


def job(base: str, model: Path, **sections: Any) -> JobConfig:
    """A job from `<base>/in` to `<base>/out`: 12 tokens a row, batches of 4 rows, rungs 16 and 32."""
    data: dict[str, Any] = {
        "name": "tiny",
        "task": "generate",
        "engine": "static",
        "model": {"path": str(model)},
        "input": {"uri": f"{base}/in", "columns": {"prompt": "prompt"}, "keep": ["id"]},
        "output": {"uri": f"{base}/out"},
        "batching": {"token_budget": 176, "ladder": [16, 32]},
        "generate": {"max_new_tokens": 12, "ignore_eos": True, "token_ids": True},
    }
    for name, section in sections.items():
        data[name] = {**data[name], **section} if isinstance(data.get(name), dict) else section
    return fill_date(validate_job(data, "tiny job"), None, "tiny job")


def read_output(uri: str) -> list[dict[str, Any]]:
    """All rows of all output files, file after file."""
    names = sorted(o.uri for o in storage.list_objects(f"{uri}/") if o.uri.endswith(".parquet"))
    return [row for name in names for row in pq.read_table(io.BytesIO(storage.read(name))).to_pylist()]
