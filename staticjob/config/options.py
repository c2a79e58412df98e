"""Sections that one task alone reads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from staticjob.config.section import Auto, Number, Section, Whole


class EmbedConfig(Section):
    """Options of the task `embed`."""

    pooling: Literal["auto", "mean", "cls", "max", "last"] = Field(
        default="auto", description="auto: from the model's sentence-transformers files, else mean"
    )
    normalize: Auto | bool = Field(
        default="auto", description="unit length; auto: from the model's sentence-transformers files"
    )
    prompt: str | None = Field(default=None, description="put before every text, e.g. 'query: '")
    prompt_name: Auto | str = Field(
        default="auto", description="one of the prompts in the model's own files; auto: its default, if any"
    )
    dimensions: Whole | None = Field(
        default=None, gt=0, description="first components kept (Matryoshka), before normalising"
    )
    output_dtype: Literal["float32", "float16", "int8", "binary"] = Field(
        default="float32", description="int8: the largest component is 127; binary: signs, 8 to a byte"
    )

    @model_validator(mode="after")
    def _one_prompt(self) -> EmbedConfig:
        if self.prompt is not None and self.prompt_name != "auto":
            raise ValueError("give either prompt or prompt_name, not both")
        return self


class LogprobConfig(Section):
    """Options of the task `logprob`."""

    token_logprobs: bool = Field(default=False, description="output column token_logprobs")


class RerankConfig(Section):
    """Options of the task `rerank`."""

    group_by: str | None = Field(
        default=None, description="kept column: output column rank among the rows of a file equal in it"
    )
    template: str | None = Field(
        default=None, description="for a causal model: text around {query} and {document}, up to its answer"
    )
    yes: str = Field(default="yes", description="the answer, one token, whose probability is the score")
    no: str = Field(default="no", description="the other answer")

    @field_validator("template")
    @classmethod
    def _placeholders(cls, value: str | None) -> str | None:
        if value is not None and (
            value.count("{query}") != 1 or value.partition("{query}")[2].count("{document}") != 1
        ):
            raise ValueError("needs {query} once and {document} once behind it")
        return value


class HandoverConfig(Section):
    """When rows leave the static engine for vLLM."""

    least_gain: Number = Field(
        default=0.05, ge=0, lt=1, description="forecast saving, of the time left, worth a change of engine"
    )


class GenerateConfig(Section):
    """Options of the task `generate`. Temperature 0 is greedy."""

    max_new_tokens: Whole = Field(gt=0, description="tokens a row may generate, its end token included")
    min_new_tokens: Whole = Field(default=0, ge=0, description="tokens before a row may end")
    temperature: Number = Field(default=0.0, ge=0)
    top_p: Number = Field(default=1.0, gt=0, le=1, description="1 filters nothing")
    top_k: Whole = Field(default=0, ge=0, description="0 filters nothing")
    seed: Whole = Field(default=0, ge=0, lt=2**63, description="of every row's own random stream")
    n: Whole = Field(default=1, ge=1, le=1024, description="samples of a row; above 1, columns hold lists")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="strings that end a text; they are cut from it"
    )
    stop_token_ids: tuple[Whole, ...] = Field(
        default=(), description="tokens that end a text, like the model's own"
    )
    ignore_eos: bool = Field(default=False, description="go on after the model's own end token")
    logprobs: bool = Field(default=False, description="output column token_logprobs")
    token_ids: bool = Field(default=False, description="output column token_ids")
    handover: HandoverConfig = HandoverConfig()

    @model_validator(mode="after")
    def _consistent(self) -> GenerateConfig:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError("min_new_tokens is more than max_new_tokens")
        if self.n > 1 and not self.temperature:
            raise ValueError("n samples at temperature 0 are all the same; set temperature or leave n at 1")
        return self
