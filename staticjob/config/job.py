"""A job: every field of its file, its default and what it means; options of one task are in `options.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from staticjob.config.airflow import PRESETS, AirflowConfig, is_schedule, is_timezone
from staticjob.config.options import EmbedConfig, GenerateConfig, LogprobConfig, RerankConfig
from staticjob.config.section import Auto, Number, Section, Uri, Whole
from staticjob.nearest import nearest
from staticjob.tasks.roles import TASKS
from staticjob.uris import writable_uri


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


class CostConfig(Section):
    """Prices for the forecast and the report."""

    gpu_hour: Number | None = Field(default=None, ge=0, description="price of one device for one hour")


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
        if frozenset(self.input.columns) not in task.reads:
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
                f"airflow.schedule {told.schedule!r}: not a cron expression; give five fields, of a day that "
                f"comes, as in '0 2 * * *', or one of {', '.join(PRESETS)}"
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
