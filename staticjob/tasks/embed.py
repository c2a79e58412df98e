"""One vector a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticjob.config.job import JobConfig
from staticjob.encoding.outcome import Encoded
from staticjob.engine.heads import Field, Inputs, Loads, Outputs, finite_rows
from staticjob.errors import ConfigError
from staticjob.models.model_files import model_config
from staticjob.models.sentence_files import embedding_of, prompt_of
from staticjob.records.status import Status

if TYPE_CHECKING:
    import pyarrow as pa

HIDDEN_SIZE = ("hidden_size", "d_model", "dim", "n_embd")


def encoder(job: JobConfig, model_dir: Path, max_length: int) -> PromptedTexts:
    """Texts behind the job's or the model's prompt, with the tokenizer's own special tokens."""
    return PromptedTexts(job, model_dir, max_length)


def fields(job: JobConfig, model_dir: Path) -> list[pa.Field]:
    """`embedding`: as many numbers as the model's vectors or the job's `dimensions` have; bits in bytes."""
    return [field.arrow() for field in head(job, model_dir).fields()]


def head(job: JobConfig, model_dir: Path) -> EmbedHead:
    return EmbedHead(job, model_dir)


class PromptedTexts:
    """The role `text`, each behind the same prompt; a row without a text has none to add it to."""

    def __init__(self, job: JobConfig, model_dir: Path, max_length: int) -> None:
        from staticjob.encoding.texts import TextEncoder
        from staticjob.encoding.tokenizer import load_tokenizer

        self._prompt = prompt_of(model_dir, job.embed)
        tokenizer = load_tokenizer(model_dir, job.model.trust_remote_code)
        self._texts = TextEncoder(tokenizer, max_length, job.limits)
        self._alone = tokenizer.encode(self._prompt).ids
        taken = len(self._alone)
        if self._prompt and taken >= max_length:
            raise ConfigError(
                f"embed: the prompt takes {taken} tokens of the {max_length} of a row and leaves none for "
                "the text; shorten it or raise limits.max_length"
            )

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row, in order."""
        texts = columns["text"]
        found = self._texts.encode_texts([self._prompt + text if text else text for text in texts])
        nothing = Encoded((), Status.EMPTY, "no tokens but the prompt's")
        return [nothing if outcome.ids == self._alone else outcome for outcome in found]


class EmbedHead:
    """One vector a row, pooled over its tokens, cut, of unit length and narrowed where wanted."""

    loads: Loads = "AutoModel"
    scores_vocabulary = False

    def __init__(self, job: JobConfig, model_dir: Path) -> None:
        self.embedding = embedding_of(model_dir, job.embed)
        config = model_config(model_dir)
        config = config.get("text_config") or config
        size = next((config[k] for k in HIDDEN_SIZE if isinstance(config.get(k), int)), 0)
        if not size:
            raise ConfigError(f"model {model_dir}: config.json names no hidden size; task embed needs one")
        self.dim = job.embed.dimensions or size
        self.kind = job.embed.output_dtype
        if self.dim > size:
            raise ConfigError(f"embed.dimensions: {self.dim} is more than the model's {size}")
        if self.kind == "binary" and self.dim % 8:
            raise ConfigError(
                f"embed.output_dtype: {self.dim} signs fill no whole bytes; set embed.dimensions"
            )

    def fields(self) -> list[Field]:
        if self.kind == "binary":
            return [Field("embedding", "uint8", self.dim // 8)]
        return [Field("embedding", self.kind, self.dim)]

    def __call__(self, model: Any, inputs: Inputs) -> Outputs:
        from staticjob.engine import pooling, quantize

        hidden = model(inputs.ids, attention_mask=inputs.mask).last_hidden_state  # [B, L, D]
        vectors = pooling.POOL[self.embedding.pooling](hidden.float(), inputs.mask)
        vectors = vectors[:, : self.dim]
        if self.embedding.normalize:
            vectors = pooling.normalize(vectors)
        finite = finite_rows(vectors)
        if self.kind == "float16":
            vectors = vectors.half()
            finite = finite_rows(vectors)
        elif self.kind == "int8":
            vectors = quantize.to_int8(vectors)
        elif self.kind == "binary":
            vectors = quantize.to_bits(vectors)
        return Outputs({"embedding": vectors}, finite)
