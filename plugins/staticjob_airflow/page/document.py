"""What the page is told, as data: one document for a run, one for its trend, one for the overview.

Every id is text. None is what is not known (yet), never zero.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ChunkState = Literal["done", "running", "failed", "stopped", "waiting"]


class Part(BaseModel):
    """Immutable; unknown fields are a mistake of ours."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RunInfo(Part):
    """The DAG run, as Airflow's database has it."""

    dag_id: str
    run_id: str
    state: str
    started: str | None
    ended: str | None
    final: bool = Field(description="nothing will change any more: the page stops asking")


class JobInfo(Part):
    """The job, as prepared."""

    name: str
    task: str
    state: str
    model: str
    input: str
    output: str
    work: str
    fingerprint: str
    device: str | None
    dtype: str | None
    reported: bool = Field(description="the end of the run leaves a report, too many row errors or not")


class Totals(Part):
    """How far it is. Chunks of every state add up to `chunks`."""

    splits_done: int
    splits: int
    states: dict[ChunkState, int]
    chunks: int
    reused: int = Field(description="chunks committed before this run began")
    rows_done: int
    rows: int
    slots_done: float = Field(description="of the planned slots: what committed and begun chunks cover")
    slots: int = Field(description="planned")
    useful_share: float | None = Field(description="of the slots computed so far")
    planned_share: float | None


class Speed(Part):
    """All workers together, over the last minutes while it runs, over the whole run when it is done."""

    rows_per_second: float
    tokens_per_second: float
    seconds_left: float | None = Field(description="the planned slots still to come, at this speed")


class Memory(Part):
    """Peak bytes of the largest shape."""

    available: int | None
    predicted: int
    measured: int | None


class Money(Part):
    """Device seconds of every chunk's last try, and what they cost where the job states a price."""

    gpu_hour: float | None
    seconds: float
    cost: float | None
    per_million: float | None = Field(description="per million useful tokens")
    predicted_seconds: float | None
    predicted_cost: float | None
    predicted_per_million: float | None


class RungRow(Part):
    """One step of the ladder. Planned slots, and what committed and unfinished chunks cover of them."""

    length: int
    batch: int
    rows: int
    slots: int
    slots_done: float
    slots_running: float
    states: dict[ChunkState, int]
    useful_share: float | None
    predicted_bytes: int | None
    measured_bytes: int | None


class ChunkRow(Part):
    """One chunk. `map_index` is the mapped `chunk` task whose log tells of it."""

    id: str
    length: int
    batch: int
    state: ChunkState
    rows: int
    batches: int
    batches_done: int
    kept_batches: int
    seconds: float | None
    worker: str
    reason: str
    texts: str = Field(description="of a chunk that generates: rows under way, at its end the last decision")
    map_index: int | None


class ErrorRow(Part):
    """One input row without a result."""

    file: str
    row: str  # `line 9` or `row 3`
    status: str
    reason: str


class CurveRow(Part):
    """Static decoding at one rung: how its rows ended, and where they left for vLLM."""

    length: int
    batch: int
    rows: int
    steps: int
    half_step: int | None = Field(description="first step with at most half of the rows")
    points: tuple[tuple[int, float], ...] = Field(description="decode step, share of rows active")
    handovers: tuple[tuple[int, int], ...] = Field(description="decode step, rows that left before it")


class JobPage(Part):
    """All about the job of a run; before the plan, only what it is and what troubles it."""

    info: JobInfo
    trouble: tuple[str, ...]
    totals: Totals | None = None
    speed: Speed | None = None
    memory: Memory | None = None
    money: Money | None = None
    rungs: tuple[RungRow, ...] = Field(default=(), description="longest first")
    chunks: tuple[ChunkRow, ...] = Field(default=(), description="longest first")
    curves: tuple[CurveRow, ...] = Field(
        default=(), description="of committed chunks that generate, longest first"
    )
    statuses: dict[str, int] = Field(default={}, description="rows answered so far")
    rows_pending: int = 0
    errors: tuple[ErrorRow, ...] = ()


class Notice(Part):
    """A line of text; `log_of` is the task whose log says more."""

    text: str
    log_of: str | None = None


class RunPage(Part):
    """The document of a run. notice: why there is no job to show, or what its numbers do not say."""

    run: RunInfo
    notice: Notice | None
    job: JobPage | None


class Change(Part):
    """One setting that differs from the run before; None where it was or is left to its default."""

    key: str
    before: str | None
    after: str | None


class TrendRun(Part):
    """One finished run of the job."""

    finished: str
    output: str
    fingerprint: str
    shown: bool = Field(description="it is the run of this page")
    rows: int
    useful_share: float
    tokens_per_second: float | None
    seconds: float
    cost: float | None
    changes: tuple[Change, ...]


class Trend(Part):
    """The last runs, oldest first."""

    runs: tuple[TrendRun, ...]


class JobLine(Part):
    """One line of the overview: a DAG, its newest run, and the trend of its job."""

    run: RunInfo
    notice: Notice | None
    facts_of: RunInfo | None = Field(
        default=None, description="the earlier run whose numbers follow; None: its own, if any"
    )
    rows_done: int | None = None
    rows: int | None = None
    useful_share: float | None = None
    cost: float | None = None
    trend: Trend = Trend(runs=())


class Overview(Part):
    """All jobs whose runs the user may read."""

    jobs: tuple[JobLine, ...]
