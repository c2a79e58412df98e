"""Chats to text, by the model's own template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from staticjob.config.job import JobConfig
from staticjob.encoding.outcome import Encoded
from staticjob.encoding.texts import TextEncoder
from staticjob.encoding.tokenizer import load_tokenizer
from staticjob.errors import ConfigError, shortened
from staticjob.records.status import Status


class ChatTemplate:
    """The chat template in a model's directory; ConfigError when it has none.

    What it renders holds every special token already: encode it without adding any.
    """

    def __init__(self, model_dir: Path, trust_remote_code: bool = False) -> None:
        # Deferred: it takes seconds, and only chats need it.
        import transformers

        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(model_dir), trust_remote_code=trust_remote_code, local_files_only=True
            )
        except Exception as error:  # transformers raises many kinds
            raise ConfigError(f"model {model_dir}: no usable tokenizer ({shortened(error)})") from None
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"model {model_dir}: its tokenizer has no chat template; use a model that has one"
            )

    def render(self, messages: Any, *, add_generation_prompt: bool) -> str:
        """The text of one chat: a list of {role, content}. ValueError says what is wrong with it."""
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages: expected a list of objects with role and content")
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise ValueError(f"messages: number {number} is not an object with role and content")
            if not isinstance(message.get("content"), str):
                raise ValueError(f"messages: the content of number {number} is not text")
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # a template may refuse a chat with any exception
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"messages: the model's chat template refuses them ({reason})") from None
        return str(text)


class ChatEncoder:
    """Chats to ids by the model's template; of a chat beyond the limit the end is kept."""

    def __init__(
        self, job: JobConfig, model_dir: Path, max_length: int, *, add_generation_prompt: bool
    ) -> None:
        trust = job.model.trust_remote_code
        self._template = ChatTemplate(model_dir, trust)
        self._add_generation_prompt = add_generation_prompt
        tokenizer = load_tokenizer(model_dir, trust)
        self._texts = TextEncoder(tokenizer, max_length, job.limits, special=False, keep="end")

    def encode_chats(self, chats: Sequence[Any]) -> list[Encoded]:
        """One outcome per chat, in order; one that the template refuses is a row error."""
        texts: list[str | None] = []
        errors: dict[int, str] = {}
        for row, messages in enumerate(chats):
            texts.append(None)
            if messages is None:
                continue
            try:
                texts[-1] = self._template.render(messages, add_generation_prompt=self._add_generation_prompt)
            except ValueError as error:
                errors[row] = str(error)
        outcomes = self._texts.encode_texts(texts)
        for row, reason in errors.items():
            outcomes[row] = Encoded((), Status.ERROR, reason)
        return outcomes
