"""One vector a row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticjob.config import JobConfig
from staticjob.engine.heads import Field, Inputs, Loads, Outputs, finite_rows
from staticjob.engine.sentence_files import embedding_of
from staticjob.errors import ConfigError
from staticjob.models.model_files import model_config

if TYPE_CHECKING:
    import pyarrow as pa

    from staticjob.encoding import TextEncoder

HIDDEN_SIZE = ("hidden_size", "d_model", "dim", "n_embd")


def encoder(job: JobConfig, model_dir: Path, max_length: int) -> TextEncoder:
    """Texts with the tokenizer's own special tokens."""
    from staticjob.encoding import TextEncoder, load_tokenizer

    return TextEncoder(load_tokenizer(model_dir, job.model.trust_remote_code), max_length, job.limits)


def fields(job: JobConfig, model_dir: Path) -> list[pa.Field]:
    """`embedding`: fixed_size_list<float32>[dim]."""
    return [field.arrow() for field in head(job, model_dir).fields()]


def head(job: JobConfig, model_dir: Path) -> EmbedHead:
    return EmbedHead(job, model_dir)


class EmbedHead:
    """One vector a row, pooled over its tokens and, where wanted, of unit length."""

    loads: Loads = "AutoModel"

    def __init__(self, job: JobConfig, model_dir: Path) -> None:
        self.embedding = embedding_of(model_dir, job.embed)
        config = model_config(model_dir)
        config = config.get("text_config") or config
        self.dim = next((config[k] for k in HIDDEN_SIZE if isinstance(config.get(k), int)), 0)
        if not self.dim:
            raise ConfigError(f"model {model_dir}: config.json names no hidden size; task embed needs one")

    def fields(self) -> list[Field]:
        return [Field("embedding", "float32", self.dim)]

    def __call__(self, model: Any, inputs: Inputs) -> Outputs:
        from staticjob.engine import pooling

        hidden = model(inputs.ids, attention_mask=inputs.mask).last_hidden_state  # [B, L, D]
        vectors = pooling.POOL[self.embedding.pooling](hidden.float(), inputs.mask)
        if self.embedding.normalize:
            vectors = pooling.normalize(vectors)
        return Outputs({"embedding": vectors}, finite_rows(vectors))
