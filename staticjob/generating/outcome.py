"""What a chunk that generates leaves beside its texts: active rows, handovers, decisions, measured rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from staticjob.generating.decode_rates import StaticRates, VllmRates
from staticjob.generating.policy import Decision
from staticjob.ledger import Ledger, decode_ledger
from staticjob.records.record import Record

if TYPE_CHECKING:
    from staticjob.generating.text_rows import TextRow


class BatchCurve(Record):
    """One static batch: `active[t]` of its `rows` rows were unfinished when decode pass t began.

    A row of n tokens is active in the first n - 1 passes: its first token comes out of the prefill.
    """

    index: int
    sample: int = Field(description="which sample of its rows, from 0")
    rows: int
    batch: int
    prompts: Ledger = Field(description="slots of its prefill")
    active: tuple[int, ...]
    left: int = Field(default=0, description="rows handed over after the last pass")
    prefill_seconds: float
    decode_seconds: float

    @property
    def steps(self) -> int:
        return len(self.active)

    def decode(self) -> Ledger:
        return decode_ledger(self.rows, self.batch, self.steps, sum(self.active))


class Curve(Record):
    """Batches added up, step by step."""

    rows: int
    slots: int = Field(description="decode slots computed: finished and dummy rows count too")
    active: tuple[int, ...]
    handovers: dict[int, int] = Field(description="decode step: rows that left for vLLM before it")

    @property
    def area(self) -> float:
        """Useful share of the decode slots; 1.0 where nothing was decoded."""
        return sum(self.active) / self.slots if self.slots else 1.0

    @property
    def half_step(self) -> int | None:
        """First step at which at most half of the rows were active; None when that was not reached."""
        return next((t for t, count in enumerate(self.active) if count <= self.rows / 2), None)

    @classmethod
    def of(cls, batches: Sequence[BatchCurve]) -> Curve:
        active = np.zeros(max((b.steps for b in batches), default=0), np.int64)
        handovers: dict[int, int] = {}
        for batch in batches:
            active[: batch.steps] += np.asarray(batch.active, np.int64)
            if batch.left:
                handovers[batch.steps] = handovers.get(batch.steps, 0) + batch.left
        return cls(
            rows=sum(b.rows for b in batches),
            slots=sum(b.batch * b.steps for b in batches),
            active=tuple(active.tolist()),
            handovers=dict(sorted(handovers.items())),
        )

    def __add__(self, other: Curve) -> Curve:
        longer, shorter = sorted((self.active, other.active), key=len, reverse=True)
        steps = {*self.handovers, *other.handovers}
        return Curve(
            rows=self.rows + other.rows,
            slots=self.slots + other.slots,
            active=tuple(a + (shorter[t] if t < len(shorter) else 0) for t, a in enumerate(longer)),
            handovers={t: self.handovers.get(t, 0) + other.handovers.get(t, 0) for t in sorted(steps)},
        )


class VllmWork(Record):
    """What vLLM did for a chunk. It pads nothing, but computes a tail's tokens so far again."""

    tails: int = Field(default=0, description="rows that began in the static engine")
    rows: int = Field(default=0, description="rows it ran from their prompt on")
    prefilled: int = Field(default=0, description="tokens of the prompts, and of the tails so far")
    again: int = Field(default=0, description="of these, what the static engine had computed before")
    generated: int = 0
    seconds: float = 0.0
    start_seconds: float = Field(
        default=0.0, description="of the last try, charged to the first chunk of its process"
    )

    @classmethod
    def of(cls, rows: Iterable[TextRow], seconds: float, start_seconds: float) -> VllmWork:
        """From a chunk's finished samples, in whichever try vLLM finished them."""
        ran = [row for row in rows if row.engine != "static"]
        tails = [row for row in ran if row.n_handed]
        return cls(
            tails=len(tails),
            rows=len(ran) - len(tails),
            prefilled=sum(row.n_prompt + row.n_handed for row in ran),
            again=sum(row.n_prompt + row.n_handed - 1 for row in tails),
            # A failed row keeps no token, not even those it was handed over with.
            generated=sum(max(0, row.n_tokens - row.n_handed) for row in ran),
            seconds=seconds,
            start_seconds=start_seconds,
        )

    def __add__(self, other: VllmWork) -> VllmWork:
        mine, theirs = self.model_dump(), other.model_dump()
        return VllmWork(**{name: mine[name] + theirs[name] for name in mine})


class Outcome(Record):
    """Generation in one committed chunk."""

    samples: int = Field(description="of every row")
    prompts: Ledger = Field(description="slots of the static prefills")
    decode: Ledger = Field(description="slots of the static decode passes")
    curve: Curve
    vllm: VllmWork
    finish: dict[str, int] = Field(description="samples by reason: stop, length or error")
    lengths: dict[int, int] = Field(description="tokens generated: samples that ended there")
    decisions: tuple[Decision, ...]
    static_rates: StaticRates | None
    vllm_rates: VllmRates | None
