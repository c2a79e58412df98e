"""Where a model's files are on this machine, and what they contain.

A model is a local directory, a directory inside an installed package (found without importing
the package), an `s3://` directory or a hub id. Needs neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from staticjob.config.job import ModelConfig
from staticjob.errors import ConfigError, DataError
from staticjob.models import model_cache
from staticjob.nearest import nearest
from staticjob.records.prepared import ModelFiles
from staticjob.storage.pinned import PinnedObject

# What a model is read from; anything else in its directory (documents, other frameworks' weights)
# neither travels nor enters the fingerprint.
SUFFIXES = {".json", ".safetensors", ".txt", ".model", ".jinja"}
PICKLES = {".bin", ".pt", ".pth"}
OTHER_FRAMEWORKS = {"onnx", "openvino", "coreml", "flax", "tf", "original"}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# model_type of the families whose first token sits at position pad_token_id + 1.
OFFSET_POSITIONS = {
    "camembert", "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta",
    "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip
# Families whose positions are relative: their n_positions is no limit.
RELATIVE_POSITIONS = {"mt5", "t5", "umt5"}
POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


def resolve(model: ModelConfig) -> Path:
    """The local directory that holds the model's files, brought to this machine when needed.

    Raises ConfigError when there is no such model, InfrastructureError when a store cannot be reached.
    """
    path = model.path
    if path.startswith("s3://"):
        return model_cache.fetch(path, lambda name: wanted(name, model))
    here = find_here(path)
    if here is not None:
        return here
    if not HUB_ID.fullmatch(path):
        raise ConfigError(f"model.path: {path!r} is neither a directory here nor inside an installed package")
    patterns = [f"*{suffix}" for suffix in sorted(_suffixes(model))]
    return model_cache.from_hub(path, model.revision, patterns, [f"{f}/*" for f in OTHER_FRAMEWORKS])


def find_here(path: str) -> Path | None:
    """The directory `path` names on this machine, by itself or in an installed package; None for others.

    Raises ConfigError for a package that is installed without such a directory.
    """
    local = Path(path).expanduser()
    return local.resolve() if local.is_dir() else _packaged(path)


def pin(directory: Path, model: ModelConfig) -> ModelFiles:
    """Names, sizes and sha256 of every file the model in `directory` (see `resolve`) is read from."""
    names = sorted(
        name
        for path in directory.rglob("*")
        if path.is_file() and wanted(name := path.relative_to(directory).as_posix(), model)
    )
    total = hashlib.sha256()
    files = []
    for name in names:
        path = directory / name
        digest = model_cache.file_digest(path)
        total.update(f"{name}\0{digest}\n".encode())
        size = path.stat().st_size
        files.append(PinnedObject(uri=str(path), size=size, version=f"sha256:{digest}"))
    return ModelFiles(source=model.path, files=tuple(files), digest=total.hexdigest())


def resolve_pinned(model: ModelConfig, pinned: ModelFiles) -> Path:
    """`resolve`, once it is known that the files are those pinned at prepare.

    Raises DataError when they are not: results of two models must never share an output.
    """
    directory = resolve(model)
    if pin(directory, model).digest != pinned.digest:
        raise DataError(
            f"model {model.path} at {directory} is not the one this job was prepared with; "
            "restore its files, or prepare the job again"
        )
    return directory


def wanted(name: str, model: ModelConfig) -> bool:
    """Whether the file `name` (relative to the model's directory) is part of the model."""
    *folders, last = name.split("/")
    if any(part.startswith(".") for part in (*folders, last)) or OTHER_FRAMEWORKS.intersection(folders):
        return False
    return Path(last).suffix in _suffixes(model)


def is_weights(name: str) -> bool:
    """Whether the file `name` holds or describes weights, and nothing that texts become tokens by."""
    path = Path(name)
    settings = path.name in ("config.json", "generation_config.json") or name.endswith(".index.json")
    return settings or path.suffix in {".safetensors", *PICKLES}


def _suffixes(model: ModelConfig) -> set[str]:
    pickles = PICKLES if model.allow_pickle else set()
    code = {".py"} if model.trust_remote_code else set()
    return SUFFIXES | pickles | code


def _packaged(path: str) -> Path | None:
    """The directory of `package/sub/dir` among the installed packages; None without such a package."""
    package, _, inside = path.strip("/").partition("/")
    if not package.isidentifier() or path.startswith(("/", ".", "~")):
        return None
    # A top-level name is looked up on disk only; nothing of the package runs.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    roots = [Path(location) for location in spec.submodule_search_locations]
    for root in roots:
        if (root / inside).is_dir():
            return (root / inside).resolve()
    folders = sorted(path.name for path in roots[0].iterdir() if path.is_dir() and path.name[0] not in "_.")
    hint = nearest(inside, folders) if folders else ""
    raise ConfigError(f"model.path: package {package} at {roots[0]} has no directory {inside!r}{hint}")


def model_config(directory: Path) -> dict[str, Any]:
    """The model's config.json; ConfigError when it is missing or not an object."""
    return read_object(directory / "config.json", "not a Hugging Face model directory")


def read_object(path: Path, missing: str) -> dict[str, Any]:
    """As `read_json`, of a file that holds an object; ConfigError when it holds something else."""
    value = read_json(path, missing)
    if not isinstance(value, dict):
        raise ConfigError(f"model file {path}: holds {type(value).__name__}, not an object; restore it")
    return value


def read_json(path: Path, missing: str) -> Any:
    """Parse one of the model's JSON files; ConfigError names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"model {path.parent}: no {path.name}; {missing}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"model file {path}: cannot be read as JSON: {error}") from None


def max_positions(config: dict[str, Any]) -> int | None:
    """Tokens one row can have by the model's config.json; None where positions are unbounded.

    RoBERTa-like models count positions from pad_token_id + 1 (1 + 1 where the file leaves it out), so
    514 embeddings serve 512 tokens.
    """
    config = config.get("text_config") or config
    if config.get("model_type") in RELATIVE_POSITIONS:
        return None
    value = next((config[key] for key in POSITION_KEYS if isinstance(config.get(key), int)), None)
    if value is None or value <= 0:
        return None
    if config.get("model_type") in OFFSET_POSITIONS:
        pad = config.get("pad_token_id")
        value -= (1 if pad is None else pad) + 1
    return int(value)


def vocabulary_size(config: dict[str, Any]) -> int | None:
    """Tokens the model has vectors for by its config.json; None where the file does not say."""
    value = (config.get("text_config") or config).get("vocab_size")
    return value if isinstance(value, int) else None
