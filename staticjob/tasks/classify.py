"""One label a row, of a text or of a pair of texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticjob.config.job import JobConfig
from staticjob.engine.heads import Field, Inputs, Loads, Outputs, finite_rows
from staticjob.errors import ConfigError
from staticjob.models.class_config import MULTI_LABEL, classifier_config, labels_of
from staticjob.tasks.task_module import RowEncoder

if TYPE_CHECKING:
    import pyarrow as pa


def encoder(job: JobConfig, model_dir: Path, max_length: int) -> RowEncoder:
    """Texts, or pairs of which the longer is cut first, with the tokenizer's own special tokens."""
    from staticjob.encoding.pairs import PairEncoder, longest_first, takes_types
    from staticjob.encoding.texts import TextEncoder
    from staticjob.encoding.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model_dir, job.model.trust_remote_code)
    if "text_pair" not in job.input.columns:
        return TextEncoder(tokenizer, max_length, job.limits)
    return PairEncoder(
        tokenizer, ("text", "text_pair"), max_length, job.limits, longest_first, takes_types(model_dir)
    )


def fields(job: JobConfig, model_dir: Path) -> list[pa.Field]:
    """`label`: the likeliest; `score`: its probability; `scores`: all, in the model's order of labels."""
    return [field.arrow() for field in head(job, model_dir).fields()]


def head(job: JobConfig, model_dir: Path) -> ClassifyHead:
    return ClassifyHead(model_dir)


class ClassifyHead:
    """Softmax over the labels; for a model of many labels at once, each label's sigmoid."""

    loads: Loads = "AutoModelForSequenceClassification"
    scores_vocabulary = False

    def __init__(self, model_dir: Path) -> None:
        config = classifier_config(model_dir, "classify")
        self.labels = labels_of(config, model_dir)
        kind = config.get("problem_type")
        if kind == "regression":
            raise ConfigError(
                f"model {model_dir}: its problem_type is regression, which has no labels; use task reward"
            )
        # One label alone is a yes or no; its softmax would always be 1.
        self.independent = kind == MULTI_LABEL or len(self.labels) == 1

    def fields(self) -> list[Field]:
        return [
            Field("label", "int32", names=self.labels),
            Field("score"),
            Field("scores", dim=len(self.labels)),
        ]

    def __call__(self, model: Any, inputs: Inputs) -> Outputs:
        from staticjob.engine.classifier import class_logits

        logits = class_logits(model, inputs)  # [B, labels]
        scores = logits.sigmoid() if self.independent else logits.softmax(dim=1)
        score, label = scores.max(dim=1)
        return Outputs({"label": label, "score": score, "scores": scores}, finite_rows(logits))
