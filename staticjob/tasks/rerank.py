"""How well a document answers a query: by a cross-encoder, or by a causal model that says yes or no."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticjob.config.job import JobConfig
from staticjob.engine.heads import Field, Head, Inputs, Loads, Outputs, finite_rows
from staticjob.errors import ConfigError
from staticjob.models.activation import activation_of
from staticjob.models.causal_config import causal_config
from staticjob.models.class_config import require_one_output
from staticjob.tasks.task_module import RowEncoder

if TYPE_CHECKING:
    import pyarrow as pa


def encoder(job: JobConfig, model_dir: Path, max_length: int) -> RowEncoder:
    """Pairs of which the document is cut, one a row or as many as a row has documents."""
    from staticjob.encoding.listed import DocumentsEncoder

    pairs = _pairs(job, model_dir, max_length)
    return DocumentsEncoder(pairs) if job.lists else pairs


def _pairs(job: JobConfig, model_dir: Path, max_length: int) -> RowEncoder:
    """For a causal model the job's template stands around both."""
    from staticjob.encoding.pairs import PairEncoder, keep_first, takes_types
    from staticjob.encoding.template import TemplateEncoder
    from staticjob.encoding.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model_dir, job.model.trust_remote_code)
    if job.rerank.template is not None:
        return TemplateEncoder(tokenizer, job.rerank.template, max_length, job.limits)
    roles = ("query", "document")
    return PairEncoder(tokenizer, roles, max_length, job.limits, keep_first, takes_types(model_dir))


def fields(job: JobConfig, model_dir: Path) -> list[pa.Field]:
    """`score`, and with group_by `rank`: 1 for the best of a group; field metadata names the activation.

    Of a list of documents `scores` and `ranks`.
    """
    from staticjob.merging.listed import list_fields
    from staticjob.merging.ranks import RANK

    own = [field.arrow() for field in head(job, model_dir).fields()]
    if job.lists:
        return list_fields(*own)
    return [*own, RANK] if job.rerank.group_by else own


def head(job: JobConfig, model_dir: Path) -> Head:
    if job.rerank.template is not None:
        return YesNoHead(job, model_dir)
    return CrossEncoderHead(model_dir)


class CrossEncoderHead:
    """The one output of a sequence classifier, through the activation its own files name."""

    loads: Loads = "AutoModelForSequenceClassification"
    scores_vocabulary = False

    def __init__(self, model_dir: Path) -> None:
        self.activation = activation_of(require_one_output(model_dir, "rerank"), model_dir)

    def fields(self) -> list[Field]:
        return [Field("score", note=("activation", self.activation))]

    def __call__(self, model: Any, inputs: Inputs) -> Outputs:
        from staticjob.engine.classifier import class_logits

        logits = class_logits(model, inputs)  # [B, 1]
        scores = logits.sigmoid() if self.activation == "sigmoid" else logits
        return Outputs({"score": scores[:, 0]}, finite_rows(logits))


class YesNoHead:
    """The probability of the token for yes against that for no, after the row's last token."""

    loads: Loads = "AutoModelForCausalLM"
    scores_vocabulary = False

    def __init__(self, job: JobConfig, model_dir: Path) -> None:
        causal_config(model_dir, "rerank with rerank.template")
        from staticjob.encoding.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(model_dir, job.model.trust_remote_code)
        self._answers = []
        for key, word in (("yes", job.rerank.yes), ("no", job.rerank.no)):
            ids = tokenizer.encode(word, add_special_tokens=False).ids
            if len(ids) != 1:
                raise ConfigError(
                    f"rerank.{key}: {word!r} is {len(ids)} tokens of model {model_dir}; give a word of one"
                )
            self._answers += ids
        if self._answers[0] == self._answers[1]:
            raise ConfigError(
                f"rerank.yes and rerank.no: {job.rerank.yes!r} and {job.rerank.no!r} are one token of model "
                f"{model_dir}; give two that it knows"
            )

    def fields(self) -> list[Field]:
        return [Field("score", note=("activation", "softmax of yes and no"))]

    def __call__(self, model: Any, inputs: Inputs) -> Outputs:
        from staticjob.engine import pooling, vocabulary

        hidden = vocabulary.last_hidden(model, inputs.ids, inputs.mask)  # [B, L, D]
        logits = vocabulary.logits(model, pooling.last(hidden, inputs.mask), self._answers)  # [B, 2]
        return Outputs({"score": logits.softmax(dim=1)[:, 0]}, finite_rows(logits))
