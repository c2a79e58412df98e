"""The text sets that benchmarks run on; both are real and found on the machine."""

from __future__ import annotations

import json
import random
import sysconfig
import tokenize
from pathlib import Path

from staticjob.sandbox.corpus import sample_rows

GSM8K = Path(__file__).resolve().parents[2] / "shared" / "data" / "gsm8k_test.jsonl"


def docstrings(rows: int | None) -> list[str]:
    """Docstrings of the standard library, shuffled: 2 to 2,600 tokens, half of them under 25."""
    return [row.text for row in sample_rows(rows, seed=0)]


def questions(rows: int | None) -> tuple[str, list[str]]:
    """The GSM8K test questions where they are at hand, else comments of the standard library."""
    if GSM8K.exists():
        lines = GSM8K.read_text(encoding="utf-8").splitlines()
        name, texts = "GSM8K test questions", [str(json.loads(line)["question"]) for line in lines]
    else:
        name, texts = "comments of the standard library", _comments()
    random.Random(0).shuffle(texts)
    return name, texts[:rows]


def _comments() -> list[str]:
    """Blocks of consecutive comment lines, at least 40 characters each."""
    texts = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        block: list[str] = []
        last = -1
        with path.open("rb") as source:
            comments = [t for t in tokenize.tokenize(source.readline) if t.type == tokenize.COMMENT]
        for token in comments:
            if token.start[0] != last + 1 and block:
                texts.append(" ".join(block))
                block = []
            block.append(token.string.strip("# "))
            last = token.start[0]
        texts.append(" ".join(block))
    return [text for text in texts if len(text) >= 40]
