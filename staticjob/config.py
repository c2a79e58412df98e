"""What a job file may say: every field, its default and what it means. `job_file.py` reads it."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from staticjob.explain import nearest
from staticjob.schedule import PRESETS, is_schedule, is_timezone
from staticjob.tasks import TASKS
from staticjob.uris import checked_uri, writable_uri

Auto = Literal["auto"]
Uri = Annotated[str, AfterValidator(checked_uri)]
Callable = Annotated[str, Field(pattern=r"^\w+(\.\w+)+$")]  # module.function, importable by Airflow


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


# Python counts true as 1. A Number may be text, as YAML reads 1e-3.
Whole = Annotated[int, Strict()]
Number = Annotated[float, BeforeValidator(_no_boolean)]


class Section(BaseModel):
    """A part of the job file; immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(Section):
    """Which model runs and how."""

    path: Uri = Field(
        description="local directory, importable package path (pkg/sub/dir), s3:// directory or hub id"
    )
    revision: str | None = Field(default=None, description="commit of a hub id")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        default="auto", description="auto: float32 on CPU, bfloat16 on a GPU that has it"
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto: cuda where there is one, else cpu",
    )
    device_memory_gib: Number | None = Field(
        default=None, gt=0, description="memory to plan with where the planner cannot see the device"
    )
    trust_remote_code: bool = Field(default=False, description="run code shipped with the model")
    allow_pickle: bool = Field(default=False, description="load weights that are not safetensors")


class InputConfig(Section):
    """The dataset that is read."""

    uri: Uri = Field(description="folder or object, s3:// or local; {date} is filled in")
    format: Literal["auto", "parquet", "jsonl", "csv"] = Field(
        default="auto", description="auto: by suffix; .gz and .zst are understood"
    )
    columns: dict[str, str] = Field(description="role of the task: column of the input")
    keep: Literal["all"] | tuple[str, ...] = Field(
        default=(), description="columns copied to the output unchanged"
    )

    @field_validator("keep", mode="before")
    @classmethod
    def _unique(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and len(set(value)) != len(value):
            raise ValueError("a column is named twice")
        return value


class OutputConfig(Section):
    """Where the mirrored files go."""

    uri: Annotated[Uri, AfterValidator(writable_uri)] = Field(
        description="folder, s3:// or local; {date} is filled in"
    )
    format: Literal["parquet"] = Field(default="parquet", description="format of the output files")
    history_uri: Uri | None = Field(
        default=None, description="object that keeps rates and past runs; default: beside the dated outputs"
    )
    compression: Literal["zstd", "snappy", "none"] = Field(
        default="zstd", description="Parquet compression of the output files"
    )


class BatchingConfig(Section):
    """How rows become rectangles."""

    token_budget: Auto | Annotated[Whole, Field(gt=0)] = Field(
        default="auto", description="slots of one batch, B x L; auto: from memory and device"
    )
    max_rungs: Auto | Annotated[Whole, Field(gt=0)] = Field(
        default="auto", description="auto: a rung is added while it saves more than it costs"
    )
    ladder: tuple[Annotated[Whole, Field(gt=0)], ...] | None = Field(
        default=None, description="fixed rungs, ascending, instead of chosen ones"
    )
    chunk_slots: Auto | Annotated[Whole, Field(gt=0)] = Field(
        default="auto", description="slots of one chunk, the unit of retry and commit"
    )

    @model_validator(mode="after")
    def _ladder(self) -> BatchingConfig:
        if self.ladder is not None:
            if not self.ladder or list(self.ladder) != sorted(set(self.ladder)):
                raise ValueError("ladder must be a non-empty ascending list of lengths")
            if self.max_rungs != "auto":
                raise ValueError("give either ladder or max_rungs, not both")
        return self


class LimitsConfig(Section):
    """What a row may be, and how many may fail."""

    max_length: Auto | Annotated[Whole, Field(gt=0)] = Field(
        default="auto", description="tokens per row, special tokens included; auto: the model's own limit"
    )
    overflow: Literal["truncate", "refuse"] = Field(
        default="truncate", description="a longer row is cut (status truncated) or refused (too_long)"
    )
    max_error_rate: Number = Field(
        default=0.01,
        ge=0,
        le=1,
        description="share of rows (where they are lists, of elements) with status error that fails the job",
    )


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


class CostConfig(Section):
    """Prices for the forecast and the report."""

    gpu_hour: Number | None = Field(default=None, ge=0, description="price of one device for one hour")


class AirflowConfig(Section):
    """How the job becomes a DAG."""

    schedule: str | None = Field(
        default=None, description="cron expression of the data interval, or a preset: @daily"
    )
    timezone: str = Field(default="UTC", description="time zone of the schedule")
    start_date: dt.date = Field(default=dt.date(2026, 1, 1), description="first data interval")
    pool: str = Field(default="gpu", description="pool of the chunk tasks: slots = GPUs")
    queue: str = Field(default="gpu", description="queue of the chunk tasks")
    cpu_queue: str | None = Field(default=None, description="queue of all other tasks")
    max_active_runs: Whole = Field(default=1, ge=1, description="runs of this DAG at once")
    retries: Whole = Field(default=3, ge=0, description="retries after infrastructure failures")
    max_mapped_tasks: Whole = Field(
        default=512, ge=1, le=1024, description="most mapped tasks of one step; core.max_map_length caps it"
    )
    aws_conn_id: str | None = Field(
        default=None, description="connection with the store's credentials; default: the worker's own"
    )
    on_missing_input: Literal["fail", "skip", "wait"] = Field(
        default="fail", description="wait holds no worker; skip ends the run well, its steps skipped"
    )
    wait_hours: Number = Field(
        default=24.0, gt=0, description="longest wait for the input; then the run fails"
    )
    on_success: Callable | None = Field(
        default=None, description="called with the context of a run that ended"
    )
    on_failure: Callable | None = Field(default=None, description="called with the context of a failed run")
    deadline_hours: Number | None = Field(
        default=None,
        gt=0,
        description="time from the queueing of a run to its end; then on_deadline is called",
    )
    on_deadline: Callable | None = Field(
        default=None, description="called once when a run passes its deadline"
    )

    @model_validator(mode="after")
    def _deadline(self) -> AirflowConfig:
        if (self.deadline_hours is None) != (self.on_deadline is None):
            raise ValueError("give both deadline_hours and on_deadline, or neither")
        return self


class JobConfig(Section):
    """A validated job: what is read, what is computed, what is written, and its price."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=200)
    task: Literal["classify", "embed", "generate", "logprob", "rerank", "reward"] = "embed"
    engine: Literal["auto", "static", "vllm"] = Field(
        default="auto",
        description="which engine runs the rows; vllm only generates; auto decides by forecast",
    )
    model: ModelConfig
    input: InputConfig
    output: OutputConfig
    batching: BatchingConfig = BatchingConfig()
    limits: LimitsConfig = LimitsConfig()
    embed: EmbedConfig = EmbedConfig()
    logprob: LogprobConfig = LogprobConfig()
    rerank: RerankConfig = RerankConfig()
    generate: GenerateConfig | None = Field(default=None, description="required by the task generate")
    cost: CostConfig = CostConfig()
    airflow: AirflowConfig | None = None

    @property
    def lists(self) -> bool:
        """Whether rows are lists, whose elements are run each on its own."""
        return TASKS[self.task].items in self.input.columns

    @property
    def max_mapped_tasks(self) -> int:
        """Most tasks that one step is cut into, under a scheduler or not."""
        return (self.airflow or AirflowConfig()).max_mapped_tasks

    @model_validator(mode="after")
    def _sections(self) -> JobConfig:
        for name, field in JobConfig.model_fields.items():
            if name in TASKS and name != self.task and getattr(self, name) != field.default:
                raise ValueError(f"{name}: options of another task than {self.task}; leave them out")
        return self

    @model_validator(mode="after")
    def _roles(self) -> JobConfig:
        task = TASKS[self.task]
        for role in self.input.columns:
            if role not in task.roles:
                raise ValueError(
                    f"input.columns: task {self.task} has no role {role!r}{nearest(role, task.roles)}"
                )
        if not any(self.input.columns.keys() - task.optional == reads for reads in task.reads):
            choices = " or ".join(" and ".join(map(repr, sorted(reads))) for reads in task.reads)
            raise ValueError(f"input.columns: task {self.task} needs a column for {choices}")
        return self

    @model_validator(mode="after")
    def _group(self) -> JobConfig:
        group = self.rerank.group_by
        if group is not None and self.lists:
            raise ValueError("rerank.group_by: a list of documents is ranked in itself; leave it out")
        if group is not None and self.input.keep != "all" and group not in self.input.keep:
            raise ValueError(f"rerank.group_by: name column {group!r} in input.keep too")
        return self

    @model_validator(mode="after")
    def _schedule(self) -> JobConfig:
        told = self.airflow
        if told is None:
            return self
        if told.schedule is not None and not is_schedule(told.schedule):
            raise ValueError(
                f"airflow.schedule {told.schedule!r}: not a cron expression; give five fields, as in "
                f"'0 2 * * *', or one of {', '.join(PRESETS)}"
            )
        if not is_timezone(told.timezone):
            raise ValueError(
                f"airflow.timezone {told.timezone!r}: no such time zone; give a name like 'Europe/Berlin'"
            )
        return self

    @model_validator(mode="after")
    def _waiting(self) -> JobConfig:
        waits = self.airflow is not None and self.airflow.on_missing_input == "wait"
        if waits and not self.input.uri.startswith("s3://"):
            raise ValueError("airflow.on_missing_input: wait watches an s3:// input; choose skip or fail")
        return self

    @model_validator(mode="after")
    def _generation(self) -> JobConfig:
        generates = TASKS[self.task].generates
        if generates and self.generate is None:
            raise ValueError(f"generate: task {self.task} needs this section, with max_new_tokens")
        if not generates and self.engine == "vllm":
            raise ValueError(f"engine: task {self.task} runs in the static engine; leave engine at auto")
        return self
