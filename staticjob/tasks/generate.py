"""Texts, bounded by a cap: what the decoder and vLLM write after a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticjob.chat import ChatTemplate
from staticjob.config import GenerateConfig, JobConfig
from staticjob.encoding import Encoded, TextEncoder, load_tokenizer
from staticjob.records import Status

if TYPE_CHECKING:
    import pyarrow as pa


def encoder(job: JobConfig, model_dir: Path, max_length: int) -> PromptEncoder:
    return PromptEncoder(job, model_dir, max_length)


def fields(job: JobConfig, model_dir: Path) -> list[pa.Field]:
    """`text`, token counts and reason to finish; with n samples each is a list of n."""
    import pyarrow as pa

    options = options_of(job)
    kinds = {
        "text": pa.string(),
        "n_prompt_tokens": pa.int32(),
        "n_generated": pa.int32(),
        "finish_reason": pa.string(),
    }
    if options.token_ids:
        kinds["token_ids"] = pa.list_(pa.int32())
    if options.logprobs:
        kinds["token_logprobs"] = pa.list_(pa.float32())
    if options.n > 1:
        kinds = {k: kind if k == "n_prompt_tokens" else pa.list_(kind) for k, kind in kinds.items()}
    return [pa.field(name, kind) for name, kind in kinds.items()]


def options_of(job: JobConfig) -> GenerateConfig:
    assert job.generate is not None, "the job file requires it"
    return job.generate


class PromptEncoder:
    """Prompts with the tokenizer's special tokens, or chats with those of the model's template.

    Of a prompt beyond the limit the end is kept: it is what the text goes on from.
    """

    def __init__(self, job: JobConfig, model_dir: Path, max_length: int) -> None:
        trust = job.model.trust_remote_code
        chats = "messages" in job.input.columns
        self._template = ChatTemplate(model_dir, trust) if chats else None
        tokenizer = load_tokenizer(model_dir, trust)
        self._texts = TextEncoder(tokenizer, max_length, job.limits, special=not chats, keep="end")

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row, in order."""
        if self._template is None:
            return self._texts.encode_texts(columns["prompt"])
        texts: list[str | None] = []
        errors: dict[int, str] = {}
        for row, messages in enumerate(columns["messages"]):
            texts.append(None)
            if messages is None:
                continue
            try:
                texts[-1] = self._template.render(messages, add_generation_prompt=True)
            except ValueError as error:
                errors[row] = str(error)
        outcomes = self._texts.encode_texts(texts)
        for row, reason in errors.items():
            outcomes[row] = Encoded((), Status.ERROR, reason)
        return outcomes
