"""The process that runs vLLM: requests in on stdin, finished rows out on stdout, one JSON object a line.

    python -m staticjob.generating.vllm_worker

First line in: the settings of `WorkerSettings`. Then any number of lines, each a list of `TailRequest`
fields. Out: {"ready": seconds}, a few {"step": …} of one row, then per list a {"step": …} after every engine
step, a {"row": …} for every row as it ends, and {"done": true}. Token ids go in and come out; vLLM sees no
text.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from staticjob.generating.decode_rates import LEAST_STEPS
from staticjob.generating.guard import run_guarded
from staticjob.generating.stop_text import GrowingText, StopRule

Send = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class WorkerSettings:
    """What the process needs before its first request."""

    model_dir: str
    dtype: Literal["float32", "float16", "bfloat16"]
    device: str
    max_length: int  # tokens of one row, prompt and text
    cache_bytes: int
    trust_remote_code: bool
    stop: tuple[str, ...]
    min_new_tokens: int


@dataclass
class _Row:
    """One request under way."""

    id: int
    prompt: int
    logprobs: bool
    growing: GrowingText | None
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)


class _Engine:
    """`vllm.LLM` stepped by hand, so that every step is a sign of life and every row leaves at its end."""

    def __init__(self, settings: WorkerSettings) -> None:
        from vllm import LLM

        self._settings = settings
        self._tokenizer: Any = None
        if settings.stop:
            from staticjob.encoding.tokenizer import load_tokenizer

            self._tokenizer = load_tokenizer(Path(settings.model_dir), settings.trust_remote_code)
        self._engine = LLM(
            settings.model_dir,
            dtype=settings.dtype,
            max_model_len=settings.max_length,
            kv_cache_memory_bytes=settings.cache_bytes,
            trust_remote_code=settings.trust_remote_code,
            skip_tokenizer_init=True,
            enforce_eager=settings.device == "cpu",
            disable_log_stats=True,
        ).llm_engine

    def run(self, requests: list[dict[str, Any]], send: Send) -> None:
        """Generate for all requests; a row is sent as soon as it ends."""
        rows = {str(number): self._admit(str(number), request) for number, request in enumerate(requests)}
        while rows:
            began = time.perf_counter()
            outputs = self._engine.step()
            seconds = time.perf_counter() - began
            prefilled = sum(rows[o.request_id].prompt for o in outputs if not rows[o.request_id].tokens)
            waiting = len(rows) - len(outputs)
            step = {"seconds": seconds, "rows": len(outputs), "prefilled": prefilled, "waiting": waiting}
            send({"step": step})
            for output in outputs:
                self._take(output, rows, send)

    def time_one_row(self, send: Send) -> None:
        """Send the steps of a row alone: where all rows live to the last, only they tell what a row costs."""
        alone = {
            "id": -1,
            "tokens": [0],
            "generated": 0,
            "max_new_tokens": min(LEAST_STEPS + 1, self._settings.max_length - 1),
            "min_new_tokens": 0,
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": 0,
            "seed": None,
            "stop_ids": [],
            "logprobs": False,
        }
        self.run([alone], lambda message: send(message) if "step" in message else None)

    def _admit(self, number: str, request: dict[str, Any]) -> _Row:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            max_tokens=request["max_new_tokens"],
            min_tokens=request["min_new_tokens"],
            temperature=request["temperature"],
            top_p=request["top_p"],
            top_k=request["top_k"],
            seed=request["seed"],
            stop_token_ids=request["stop_ids"],
            ignore_eos=True,  # the stop ids hold what ends a row
            logprobs=0 if request["logprobs"] else None,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(number, {"prompt_token_ids": request["tokens"]}, parameters)
        return _Row(
            id=request["id"],
            prompt=len(request["tokens"]),
            logprobs=request["logprobs"],
            growing=self._growing(request["tokens"], request["generated"]),
        )

    def _growing(self, tokens: list[int], generated: int) -> GrowingText | None:
        """The row's text so far: a stop string may have begun before vLLM's first token."""
        if not self._settings.stop:
            return None
        rule = StopRule(self._settings.stop, self._settings.min_new_tokens)
        growing = GrowingText(self._tokenizer, rule)
        growing.push(tokens[len(tokens) - generated :])
        return growing

    def _take(self, output: Any, rows: dict[str, _Row], send: Send) -> None:
        row, (piece,) = rows[output.request_id], output.outputs
        new = list(piece.token_ids)
        row.tokens += new
        if row.logprobs:
            row.chances += [chosen[t].logprob for t, chosen in zip(new, piece.logprobs, strict=True)]
        stopped = row.growing is not None and row.growing.push(new)
        if stopped and not output.finished:
            self._engine.abort_request([output.request_id], internal=False)
        if stopped or output.finished:
            finish = "stop" if stopped else piece.finish_reason
            send({"row": row.id, "tokens": row.tokens, "finish": finish, "logprobs": row.chances})
            del rows[output.request_id]


def main() -> int:
    """Serve lists of requests until stdin ends; see the module."""
    started = time.perf_counter()
    # vLLM and what it loads print to stdout; the protocol keeps a copy of its own.
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        protocol.write(json.dumps(message) + "\n")
        protocol.flush()

    settings = json.loads(sys.stdin.readline())
    engine = _Engine(WorkerSettings(**settings | {"stop": tuple(settings["stop"])}))
    send({"ready": time.perf_counter() - started})
    engine.time_one_row(send)
    for line in sys.stdin:
        engine.run(json.loads(line), send)
        send({"done": True})
    return 0


if __name__ == "__main__":
    run_guarded(main)
