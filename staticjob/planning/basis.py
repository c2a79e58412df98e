"""What a plan is made from beside the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from staticjob.engine.cache_slots import SLOT_MULTIPLE
from staticjob.memory import ALIGNMENT, Target
from staticjob.planning.decoding import Growth
from staticjob.planning.forecast import assumed_rates
from staticjob.planning.head_sizes import HeadSizes
from staticjob.records.rates import Rates


@dataclass(frozen=True)
class Basis:
    """`max_length` is the resolved limit in tokens; `kept_schema` the unified schema of the kept columns
    (base64); `head` what the task's head adds to the model; `target` the device, dtype and free memory of
    the run; `rates` measured speed, or None; `growth` that of rows that generate."""

    kept_schema: str
    max_length: int
    model_config: Mapping[str, Any]
    head: HeadSizes
    target: Target
    rates: Rates | None = None
    growth: Growth | None = None

    @property
    def working_rates(self) -> Rates:
        """Rates to size with: assumed ones where none were measured."""
        return self.rates if self.rates and self.rates.shapes else assumed_rates(self.target.kind)

    @property
    def cap(self) -> int:
        """Tokens by which a row can grow."""
        return self.growth.cap if self.growth else 0

    @property
    def multiple(self) -> int:
        """Rungs are multiples of this."""
        return SLOT_MULTIPLE if self.growth else ALIGNMENT[self.target.kind]
