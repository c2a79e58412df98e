"""What earlier runs of a job tell the next one's policy: lengths of its texts, and both engines' speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Self

from pydantic import Field

from staticjob.engine.shape import Shape
from staticjob.generating.decode_rates import StaticRates, VllmRates
from staticjob.generating.outcome import Outcome
from staticjob.generating.survival import Observed
from staticjob.records.record import Record


class ShapeRates(Record):
    """The static decoder's speed at one rung."""

    length: int
    rates: StaticRates


class Earlier(Record):
    """Of the job's last finished run; empty before the first."""

    cap: int = Field(default=0, description="tokens a row could generate")
    lengths: dict[int, int] = Field(default_factory=dict, description="tokens generated: samples")
    static_shapes: tuple[ShapeRates, ...] = ()
    vllm: VllmRates | None = None

    @classmethod
    def of(cls, cap: int, chunks: Iterable[tuple[int, Outcome]], before: Self) -> Self:
        """From all commits of a run (rung, outcome); what it did not measure is `before`'s."""
        lengths: Counter[int] = Counter()
        shapes: dict[tuple[int, int], ShapeRates] = {}
        vllm = before.vllm
        for length, outcome in chunks:
            lengths.update(outcome.lengths)
            if outcome.static_rates:
                shapes[length, outcome.static_rates.batch] = ShapeRates(
                    length=length, rates=outcome.static_rates
                )
            vllm = outcome.vllm_rates or vllm
        return cls(
            cap=cap if lengths else before.cap,
            lengths=dict(sorted(lengths.items())) or before.lengths,
            static_shapes=tuple(shapes[key] for key in sorted(shapes)) or before.static_shapes,
            vllm=vllm,
        )

    def seen(self, cap: int) -> Observed | None:
        """Its rows as the policy counts them; None where there are none, or a lower cap ended them."""
        if not self.lengths or self.cap < cap:
            return None
        observed = Observed(cap)
        observed.add_lengths(self.lengths)
        return observed

    def static(self, shape: Shape, now: Mapping[Shape, StaticRates]) -> StaticRates | None:
        """Speed at `shape`: as measured in this run, else in the earlier one, at the nearest rung.

        Prefill is scaled by its slots; steps depend on the rows and on the slots attended over, not on
        the rung.
        """
        known = [(s.length, rates) for s, rates in now.items()] or [
            (s.length, s.rates) for s in self.static_shapes
        ]
        if not known:
            return None
        length, rates = min(known, key=lambda k: (abs(k[1].batch - shape.batch), abs(k[0] - shape.length)))
        scale = shape.length * shape.batch / (length * rates.batch)
        return rates.model_copy(
            update={
                "batch": shape.batch,
                "prefill_seconds": rates.prefill_seconds * scale,
                "source": "earlier",
            }
        )
