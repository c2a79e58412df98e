"""The ledger: every computed slot, by what it was paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from staticjob.records.record import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Ledger(Record):
    """Every computed slot, by what it was paid for. `slots` is always the sum of the others."""

    useful: int = 0
    padding: int = 0
    dummy: int = 0
    finished: int = Field(default=0, description="decode slots of rows that had already ended")
    slots: int = 0

    @model_validator(mode="after")
    def _sums(self) -> Ledger:
        if self.useful + self.padding + self.dummy + self.finished != self.slots:
            raise ValueError(f"ledger does not sum: {self!r}")
        return self

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger(
            useful=self.useful + other.useful,
            padding=self.padding + other.padding,
            dummy=self.dummy + other.dummy,
            finished=self.finished + other.finished,
            slots=self.slots + other.slots,
        )

    @property
    def useful_share(self) -> float:
        """Useful over computed slots; 1.0 for an empty ledger (nothing was wasted)."""
        return self.useful / self.slots if self.slots else 1.0


def batch_ledger(lengths: NDArray[np.int32], length: int, batch: int) -> Ledger:
    """Account for one rectangle [batch, length] whose real rows have these token counts [n]."""
    useful = int(lengths.sum())
    n = len(lengths)
    return Ledger(
        useful=useful,
        padding=n * length - useful,
        dummy=(batch - n) * length,
        slots=batch * length,
    )


def decode_ledger(rows: int, batch: int, steps: int, active: int) -> Ledger:
    """Account for `steps` decode passes of a batch with `rows` real rows: one slot a row and pass.

    `active` is the sum over the passes of the rows that had not ended.
    """
    return Ledger(
        useful=active, finished=rows * steps - active, dummy=(batch - rows) * steps, slots=batch * steps
    )
