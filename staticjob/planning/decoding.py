"""What a plan must know of rows that grow: shapes, memory and time of bounded generation."""

from __future__ import annotations

from dataclasses import dataclass

from staticjob.config.job import JobConfig
from staticjob.engine.cache_slots import cache_slots
from staticjob.records.plan import Chunk
from staticjob.tasks.roles import TASKS

# Rows of a decode batch that make good use of a step: every step reads all weights once, whatever the
# rows, until the products are bound by arithmetic (measured on CPU cores: 32; a GPU's cores need more).
BEST_ROWS = {"cpu": 32, "cuda": 256}
# Decode slots a second to size chunks' packs with until a run has measured them.
ASSUMED_SLOTS_PER_SECOND = {"cpu": 200.0, "cuda": 20_000.0}
# A chunk is also the unit of handover: a few batches a lane, so that the first say what the rest will do.
LEAST_DECODE_BATCHES = 8
# Engine start and, where tails are handed over, vLLM's.
START_SECONDS = 60.0


@dataclass(frozen=True)
class Growth:
    """Rows grow by up to `cap` tokens, each `samples` times; a CPU runs `lanes` batches at once."""

    cap: int
    samples: int = 1
    lanes: int = 1

    def width(self, length: int) -> int:
        """Cache slots of a row at rung `length`."""
        return cache_slots(length, self.cap)

    def chunk_seconds(self, chunk: Chunk, kind: str) -> float:
        """Decoding to the cap at the assumed speed."""
        return chunk.batches * chunk.batch * self.cap * self.samples / ASSUMED_SLOTS_PER_SECOND[kind]


def growth_of(config: JobConfig, lanes: int) -> Growth | None:
    """How the job's rows grow; None for a task that does not generate."""
    options = config.generate
    if not TASKS[config.task].generates or options is None:
        return None
    return Growth(options.max_new_tokens, options.n, lanes)
