"""Seeded classifiers and causal models with a tokenizer, and what Hugging Face says of each row alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tiny_encoders import FAMILIES

CLASSIFIERS = [
    "bert", "roberta", "electra", "distilbert", "modernbert", "mpnet", "albert", "deberta_v2", "gpt2",
    "llama", "qwen3", "mistral_sliding", "gemma2",
]  # fmt: skip
CAUSAL = ["gpt2", "llama", "qwen3", "mistral_sliding", "gemma2"]
LABELS = ("no", "maybe", "yes")


def save_classifier(family: str, directory: Path, labels: tuple[str, ...] = LABELS, **changes: Any) -> Path:
    """Write a classifier; a decoder's without a pad token unless `changes` name one."""
    name, settings, _ = FAMILIES[family]
    torch.manual_seed(0)
    if family in CAUSAL:
        settings = {**settings, "pad_token_id": None}
    named = {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    config = getattr(transformers, name)(**{**settings, "initializer_range": 0.2, **named, **changes})
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(directory)
    return directory


def save_causal(family: str, directory: Path, **changes: Any) -> Path:
    name, settings, _ = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, name)(
        **{**settings, "pad_token_id": None, "initializer_range": 0.2, **changes}
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


def class_logits(
    directory: Path, texts: list[list[int]], types: list[list[int]] | None = None, **changes: Any
) -> torch.Tensor:
    """Logits [n, labels] of every row alone, by Hugging Face's eager attention."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32, **changes
    ).eval()
    extra = [{"token_type_ids": torch.tensor([t])} for t in types] if types else [{} for _ in texts]
    with torch.inference_mode():
        return torch.cat(
            [model(torch.tensor([t]), **more).logits for t, more in zip(texts, extra, strict=True)]
        )


def token_logprobs(directory: Path, texts: list[list[int]]) -> list[torch.Tensor]:
    """Of each row alone the log-probabilities [n - 1, V] after every token but the last."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.inference_mode():
        return [model(torch.tensor([text])).logits[0, :-1].double().log_softmax(-1) for text in texts]


WORDS = [f"w{i}" for i in range(4, 101)]
CHAT = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} w9 {% endfor %}"


def save_tokenizer(directory: Path, *, chat: bool = False, first: bool = False, plain: bool = False) -> Path:
    """One token a word, `w4` to `w100`; BERT's templates, with `first` only [CLS] before a text, or none."""
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3} | {w: i + 4 for i, w in enumerate(WORDS)}
    if chat:
        vocabulary |= {"user": vocabulary.pop("w99"), "assistant": vocabulary.pop("w100")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if not plain:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A" if first or chat else "[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    fast.chat_template = CHAT if chat else None
    fast.save_pretrained(directory)
    return directory


def words(row: list[int]) -> str:
    """The text whose tokens these ids are."""
    return " ".join(f"w{i}" for i in row)
