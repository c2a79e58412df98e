"""Are greedy texts Hugging Face's? Every question, SmolLM2-135M in float32, at most 64 tokens.

    python benchmarks/parity.py [--rows N] [--cap N] [--generate N]

The texts come from the static decoder in batches of 32. Each is held, token for token, to Hugging Face
alone (batch 1, eager attention) by one forward over its prompt and tokens: where the argmax after every
token is the text's next token, Hugging Face's greedy `generate` gives this text, by induction over its
length. A row may part only where Hugging Face's own two best logits lie within 1e-3 of each other; what
follows such a position is another text and is not compared. `--generate` rows are held to a real
`generate` as well.
Results are written to RESULTS.md beside this file; the exit status is 1 when a row parts otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from results import machine, versions, write_section
from texts import questions
from workloads import Workload, mild

from staticjob.config.job import ModelConfig
from staticjob.engine.decode import StaticDecoder
from staticjob.engine.lanes import Lanes

HERE = Path(__file__).resolve().parent
# Two logits that float32 rounding can swap.
NEAR = 1e-3
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Parted:
    """The first position of a row's text at which Hugging Face would go on otherwise."""

    row: int
    position: int
    ours: int
    theirs: int
    gap: float  # between Hugging Face's two best logits

    @property
    def near(self) -> bool:
        return self.gap <= NEAR


def static_texts(work: Workload) -> Iterator[tuple[int, list[int]]]:
    """(row, tokens), batch by batch."""
    batches = work.batches()
    settings = ModelConfig(path=work.model_dir, device="cpu", dtype="float32")
    shapes = sorted({batch.shape for batch in batches})
    decoder = StaticDecoder(work.model, settings, shapes, work.cap, ending=work.ending())
    for batch, done in zip(batches, decoder.run(b.prompts() for b in batches), strict=True):
        for b, key in enumerate(batch.keys):
            yield key.row, done.tokens[b, : done.counts[b]].tolist()


def first_parting(model: Any, row: int, prompt: list[int], text: list[int]) -> Parted | None:
    """Where Hugging Face's greedy text leaves `text`; None where it is the same."""
    ids = torch.tensor([prompt + text[:-1]])
    with torch.inference_mode():
        logits = model(input_ids=ids, logits_to_keep=len(text)).logits[0]  # [len(text), V]
    best = logits.topk(2)
    chosen = best.indices[:, 0].tolist()
    for position, (ours, theirs) in enumerate(zip(text, chosen, strict=True)):
        if ours != theirs:
            gap = float(best.values[position, 0] - best.values[position, 1])
            return Parted(row, position, ours, theirs, gap)
    return None


def generated(model: Any, work: Workload, row: int) -> list[int]:
    """Hugging Face's own greedy text."""
    prompt = torch.tensor([work.prompts[row]])
    with torch.inference_mode():
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=work.cap,
            do_sample=False,
            pad_token_id=0,
        )
    tokens: list[int] = out[0, prompt.shape[1] :].tolist()
    return tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=None, help="questions [all]")
    parser.add_argument("--cap", type=int, default=64, help="tokens of a text, at most [64]")
    parser.add_argument("--generate", type=int, default=24, help="rows held to `generate` itself [24]")
    arguments = parser.parse_args()
    from transformers import AutoModelForCausalLM

    work = mild(arguments.rows, arguments.cap, batch=32)
    torch.set_num_threads(CORES)
    began = time.perf_counter()
    texts = dict(static_texts(work))
    decoded = time.perf_counter() - began
    print(f"{len(texts)} texts in {decoded:.0f} s", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        work.model, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    # One row per core: nothing waits for another core after every product.
    lanes = Lanes(CORES)
    parted: dict[int, Parted] = {}

    def hold(row: int) -> None:
        found = first_parting(model, row, work.prompts[row], texts[row])
        if found:
            parted[row] = found
            print(f"  {found}", flush=True)

    for _ in lanes.map(hold, range(len(texts))):
        pass
    parted = dict(sorted(parted.items()))
    print(f"one forward each after {time.perf_counter() - began:.0f} s", flush=True)
    sample = range(0, len(texts), max(1, len(texts) // max(1, arguments.generate)))[: arguments.generate]
    contrary = []

    def confirm(number: int) -> None:
        row = sample[number]
        end = parted[row].position if row in parted else None
        if generated(model, work, row)[:end] != texts[row][:end]:
            contrary.append(row)

    for _ in lanes.map(confirm, range(len(sample))):
        pass
    near = sum(p.near for p in parted.values())
    lines = [
        f"{machine()}. {versions()}.",
        f"SmolLM2-135M-Instruct, float32; {len(texts)} {questions(0)[0]} as chats, at most {work.cap} "
        "tokens, batches of 32 against batch 1.",
        "",
        "| rows | | |",
        "| --- | ---: | --- |",
        f"| equal to the last token | {len(texts) - len(parted)} | one eager forward over prompt and text: "
        "the argmax after every token is the text's next |",
        f"| parted where the two best logits lie within {NEAR:g} | {near} | "
        f"{_where(list(parted.values()), True)} |",
        f"| parted otherwise | {len(parted) - near} | {_where(list(parted.values()), False)} |",
        f"| `generate` itself gives the same | {len(sample) - len(contrary)} of {len(sample)} | "
        f"up to where a row parted{f', not rows {sorted(contrary)}' if contrary else ''} |",
    ]
    print("\n".join(lines))
    write_section(HERE / "RESULTS.md", "Parity of greedy texts", "\n".join(lines))
    return int(near < len(parted) or bool(contrary))


def _where(parted: list[Parted], near: bool) -> str:
    """Each parted row as row@position (gap)."""
    return ", ".join(f"row {p.row} at token {p.position} ({p.gap:.1e})" for p in parted if p.near == near)


if __name__ == "__main__":
    sys.exit(main())
