"""Texts, bounded by a cap: what the decoder and vLLM write after a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticjob.config.job import JobConfig
from staticjob.config.options import GenerateConfig
from staticjob.encoding.chat import ChatEncoder
from staticjob.encoding.outcome import Encoded
from staticjob.encoding.texts import TextEncoder
from staticjob.encoding.tokenizer import load_tokenizer
from staticjob.models.causal_config import require_causal
from staticjob.tasks.task_module import RowEncoder

if TYPE_CHECKING:
    import pyarrow as pa


def encoder(job: JobConfig, model_dir: Path, max_length: int) -> RowEncoder:
    """Whole prompts or chats; what the text goes on from is their end."""
    if "messages" in job.input.columns:
        return MessagesEncoder(job, model_dir, max_length)
    return PromptEncoder(job, model_dir, max_length)


def fields(job: JobConfig, model_dir: Path) -> list[pa.Field]:
    """`text`, token counts and reason to finish; with n samples each is a list of n."""
    import pyarrow as pa

    require_causal(model_dir, "generate")
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
    """Prompts with the tokenizer's special tokens; of a prompt beyond the limit the end is kept."""

    def __init__(self, job: JobConfig, model_dir: Path, max_length: int) -> None:
        tokenizer = load_tokenizer(model_dir, job.model.trust_remote_code)
        self._texts = TextEncoder(tokenizer, max_length, job.limits, keep="end")

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row, in order."""
        return self._texts.encode_texts(columns["prompt"])


class MessagesEncoder(ChatEncoder):
    """Chats up to where the model's answer begins."""

    def __init__(self, job: JobConfig, model_dir: Path, max_length: int) -> None:
        super().__init__(job, model_dir, max_length, add_generation_prompt=True)

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row, in order."""
        return self.encode_chats(columns["messages"])
