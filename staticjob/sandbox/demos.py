"""The demos: which job file each runs, and what it needs in the store."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from staticjob.sandbox.corpus import write_corpus
from staticjob.sandbox.questions import questions, upload_model, write_questions

# One fixed day: a second run finds the output of the first and resumes it.
DATE = "2026-01-31"
MODEL = "s3://models/smollm2-135m-instruct/"


@dataclass(frozen=True)
class Demo:
    """A job file of `jobs/`, and the upload of its input: `upload(uri, rows)` says what it wrote."""

    dag_id: str
    input: str
    output: str
    rows: int
    upload: Callable[[str, int], str]


def _docstrings(uri: str, rows: int) -> str:
    write_corpus(uri, rows)
    return f"{rows} docstrings"


def _questions(uri: str, rows: int) -> str:
    source = os.environ.get("QUESTIONS")
    texts = questions(Path(source) if source else None, rows)
    write_questions(uri, texts)
    upload_model(MODEL)
    return f"{len(texts)} questions{f' of {source}' if source else ' about docstrings'}"


DOCSTRINGS = Demo(
    "docstrings",
    f"s3://corpus/docstrings/{DATE}/",
    f"s3://embeddings/docstrings/{DATE}/",
    2000,
    _docstrings,
)
ANSWERS = Demo("gsm8k_answers", f"s3://prompts/gsm8k/{DATE}/", f"s3://answers/gsm8k/{DATE}/", 64, _questions)
DEMOS = {demo.dag_id: demo for demo in (DOCSTRINGS, ANSWERS)}
