"""One number a row: how good an answer in a chat is, by a reward model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticjob.config.job import JobConfig
from staticjob.encoding.chat import ChatEncoder
from staticjob.encoding.outcome import Encoded, missing
from staticjob.engine.heads import Field, Inputs, Loads, Outputs, finite_rows
from staticjob.models.class_config import require_one_output

if TYPE_CHECKING:
    import pyarrow as pa


def encoder(job: JobConfig, model_dir: Path, max_length: int) -> AnswerEncoder:
    return AnswerEncoder(job, model_dir, max_length, add_generation_prompt=False)


def fields(job: JobConfig, model_dir: Path) -> list[pa.Field]:
    """`reward`: the model's number as it is."""
    return [field.arrow() for field in head(job, model_dir).fields()]


def head(job: JobConfig, model_dir: Path) -> RewardHead:
    return RewardHead(model_dir)


class AnswerEncoder(ChatEncoder):
    """Whole chats, or a prompt and its response as a chat of two messages."""

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row, in order."""
        if "messages" in columns:
            return self.encode_chats(columns["messages"])
        pairs = list(zip(columns["prompt"], columns["response"], strict=True))
        absent = [missing("prompt", prompt) or missing("response", response) for prompt, response in pairs]
        chats = [
            None
            if gone
            else [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
            for gone, (prompt, response) in zip(absent, pairs, strict=True)
        ]
        return [gone or found for gone, found in zip(absent, self.encode_chats(chats), strict=True)]


class RewardHead:
    """The only output of a sequence classifier, read at the chat's last token."""

    loads: Loads = "AutoModelForSequenceClassification"
    scores_vocabulary = False

    def __init__(self, model_dir: Path) -> None:
        require_one_output(model_dir, "reward")

    def fields(self) -> list[Field]:
        return [Field("reward")]

    def __call__(self, model: Any, inputs: Inputs) -> Outputs:
        from staticjob.engine.classifier import class_logits

        logits = class_logits(model, inputs)  # [B, 1]
        return Outputs({"reward": logits[:, 0]}, finite_rows(logits))
