"""A GGUF file as an ordinary checkpoint: safetensors weights, config and tokenizer in one directory.

Quantised weights are expanded to float32 once, here, so that every engine afterwards reads the same
numbers from the same files.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

from staticjob.errors import ConfigError, InfrastructureError, shortened

MAGIC = b"GGUF"
# What transformers reads the format with; the extra `gguf` has them.
READERS = ("gguf", "accelerate")


def import_gguf(source: Path, target: Path) -> None:
    """Write the model in `source` (one .gguf file) as a directory `target`, which must not exist.

    The directory appears by one rename after everything in it is written. Raises ConfigError when the
    file is not GGUF, holds an architecture transformers cannot load, or `target` exists, and where the
    package gguf is not installed.
    """
    _check(source, target)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _convert(source, partial)
        partial.rename(target)
    except OSError as error:
        raise InfrastructureError(f"import of {source} to {target}: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check(source: Path, target: Path) -> None:
    try:
        with source.open("rb") as handle:
            magic = handle.read(len(MAGIC))
    except OSError as error:
        raise ConfigError(f"GGUF file {source}: {error.strerror or error}") from None
    if magic != MAGIC:
        raise ConfigError(f"GGUF file {source}: does not start with 'GGUF'; give a model in GGUF format")
    missing = [package for package in READERS if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigError(f"GGUF file {source}: reading it needs more; pip install {' '.join(missing)}")
    if target.exists():
        raise ConfigError(f"target {target}: exists already; remove it or name another directory")


def _convert(source: Path, partial: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    where: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
        expanded = GgufConfig(dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(
            source.parent, dtype=torch.float32, quantization_config=expanded, **where
        )
    except (ValueError, KeyError, ImportError, RuntimeError, NotImplementedError) as error:
        raise ConfigError(f"GGUF file {source}: transformers cannot load it: {shortened(error)}") from None
    # The weights are plain numbers from here on; a leftover quantisation note would be obeyed by loaders.
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
