"""How likely a text is, token by token, by a causal language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticjob.config.job import JobConfig
from staticjob.engine.heads import Field, Inputs, Loads, Outputs, finite_rows
from staticjob.models.causal_config import causal_config, start_token
from staticjob.tasks.task_module import RowEncoder

if TYPE_CHECKING:
    import pyarrow as pa


def encoder(job: JobConfig, model_dir: Path, max_length: int) -> RowEncoder:
    from staticjob.encoding.continuations import ContinuationEncoder
    from staticjob.encoding.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model_dir, job.model.trust_remote_code)
    vocabulary = int(causal_config(model_dir, "logprob")["vocab_size"])
    return ContinuationEncoder(tokenizer, max_length, job.limits, start_token(model_dir), vocabulary)


def fields(job: JobConfig, model_dir: Path) -> list[pa.Field]:
    """`logprob`: sum over the scored tokens; `n_scored`; `is_greedy`; `perplexity`; `token_logprobs`."""
    return [field.arrow() for field in head(job, model_dir).fields()]


def head(job: JobConfig, model_dir: Path) -> LogprobHead:
    causal_config(model_dir, "logprob")
    return LogprobHead(job.logprob.token_logprobs)


class LogprobHead:
    """Log-probabilities of the tokens from each row's boundary on, given those before."""

    loads: Loads = "AutoModelForCausalLM"
    scores_vocabulary = True

    def __init__(self, token_logprobs: bool) -> None:
        self._token_logprobs = token_logprobs

    def fields(self) -> list[Field]:
        own = [Field("logprob"), Field("n_scored", "int32"), Field("is_greedy", "bool"), Field("perplexity")]
        return [*own, Field("token_logprobs", length="n_scored")] if self._token_logprobs else own

    def __call__(self, model: Any, inputs: Inputs) -> Outputs:
        """The last token of a row is never fed: nothing follows it."""
        import torch

        from staticjob.engine import vocabulary

        ids, mask, boundaries = inputs
        rows, steps = len(ids), ids.shape[1] - 1
        hidden = vocabulary.last_hidden(model, ids[:, :-1], mask[:, :-1])  # [B, L - 1, D]
        positions = torch.arange(1, steps + 1, device=ids.device)
        # Position t speaks of token t + 1.
        scored = mask[:, 1:] & (positions >= boundaries[:, None]) & (boundaries[:, None] > 0)
        values, greedy = vocabulary.target_logprobs(
            model, hidden.reshape(rows * steps, -1), ids[:, 1:].reshape(-1), scored.reshape(-1)
        )
        values, greedy = values.view(rows, steps), greedy.view(rows, steps)
        count = scored.sum(dim=1)
        total = values.double().sum(dim=1)
        perplexity = torch.exp(-total / count.clamp(min=1)).float()
        columns = {
            "logprob": total.float(),
            "n_scored": count,
            "is_greedy": greedy.sum(dim=1) == count,
            "perplexity": perplexity,
        }
        if self._token_logprobs:
            front = torch.argsort(scored.logical_not(), dim=1, stable=True)
            columns["token_logprobs"] = values.gather(1, front)
        return Outputs(columns, finite_rows(values) & perplexity.isfinite())
