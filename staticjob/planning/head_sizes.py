"""What a task's head adds to its model in memory, from config.json alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from staticjob.config.job import JobConfig
from staticjob.engine.logit_chunks import chunk_positions
from staticjob.models.dimensions import Dimensions
from staticjob.running.results import row_bytes
from staticjob.tasks.roles import TASKS
from staticjob.tasks.task_module import task_module

# Families whose output matrix is their embedding unless config.json says otherwise.
TIED = {"gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neo", "bloom", "opt", "mpt"}


@dataclass(frozen=True)
class HeadSizes:
    """`row_bytes`: results of one row; `parameters`: weights that the model without a head lacks;
    `logits`: values that scoring a vocabulary computes at once, in one lane."""

    row_bytes: int
    parameters: int = 0
    logits: int = 0


def head_sizes(
    job: JobConfig,
    model_dir: Path,
    config: Mapping[str, Any],
    fields: Sequence[pa.Field],
    kind: str,
    cap: int,
) -> HeadSizes:
    """Sizes of the job's head on a device of `kind`; lists and texts are taken to hold `cap` tokens."""
    if TASKS[job.task].generates:
        return HeadSizes(row_bytes(fields, cap), _vocabulary_matrix(config))
    head = task_module(job.task).head(job, model_dir)
    if job.lists:  # their elements are run and kept one by one
        fields = [field.arrow() for field in head.fields()]
    # The texts of all other tasks are the names of labels.
    width = row_bytes(fields, cap if any(pa.types.is_list(field.type) for field in fields) else 0)
    sizes = Dimensions.of(config)
    if head.loads == "AutoModelForSequenceClassification":
        labels = len(config.get("id2label") or {}) or 2
        # Most encoders put one more dense layer between the first token and the labels.
        return HeadSizes(width, sizes.hidden * (labels + (0 if sizes.gated else sizes.hidden)))
    if head.loads == "AutoModelForCausalLM":
        scored = sizes.vocabulary * chunk_positions(kind, sizes.vocabulary) if head.scores_vocabulary else 0
        return HeadSizes(width, _vocabulary_matrix(config), scored)
    return HeadSizes(width)


def _vocabulary_matrix(config: Mapping[str, Any]) -> int:
    tied = config.get("tie_word_embeddings", config.get("model_type") in TIED)
    sizes = Dimensions.of(config)
    return 0 if tied else sizes.vocabulary * sizes.hidden
