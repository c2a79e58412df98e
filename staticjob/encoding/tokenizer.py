"""A model's own tokenizer, in Rust."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from staticjob.errors import ConfigError, shortened

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")


def load_tokenizer(model_dir: Path, trust_remote_code: bool = False) -> Tokenizer:
    """The model's Rust tokenizer, without padding or truncation of its own.

    Raises ConfigError when the model has no tokenizer or only one without a Rust form.
    """
    from tokenizers import Tokenizer

    path = model_dir / "tokenizer.json"
    if path.exists():
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # its Rust code raises nothing narrower
            raise ConfigError(
                f"model file {path}: cannot be read as a tokenizer ({shortened(error)}); restore it"
            ) from None
    else:
        tokenizer = _convert_tokenizer(model_dir, trust_remote_code)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def require_tokenizer(model_dir: Path) -> None:
    """Raise ConfigError when the model's directory holds no tokenizer at all."""
    if not any((model_dir / name).exists() for name in TOKENIZER_FILES):
        raise ConfigError(
            f"model {model_dir}: no tokenizer (looked for {', '.join(TOKENIZER_FILES)}); "
            "add the tokenizer.json the model was trained with"
        )


def _convert_tokenizer(model_dir: Path, trust_remote_code: bool) -> Tokenizer:
    """Build the Rust tokenizer from older files (vocab.txt, sentencepiece) through transformers."""
    require_tokenizer(model_dir)
    import transformers

    try:
        slow = transformers.AutoTokenizer.from_pretrained(
            str(model_dir), trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # transformers raises many kinds for a missing tokenizer
        raise ConfigError(
            f"model {model_dir}: no usable tokenizer ({shortened(error)}); "
            "add the tokenizer.json the model was trained with"
        ) from None
    backend = getattr(slow, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(f"model {model_dir}: its tokenizer has no fast form; save it as tokenizer.json")
    converted: Tokenizer = backend
    return converted


def leading_special(tokenizer: Tokenizer) -> list[int]:
    """The special tokens that it puts before a text."""
    probe = tokenizer.encode("a")
    own = probe.special_tokens_mask.index(0) if 0 in probe.special_tokens_mask else 0
    return list(probe.ids[:own])
