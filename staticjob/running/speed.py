"""Speed and time left from the slots paid so far: what the bars and lines of a run show.

By slots and not by rows: the plan runs the longest rows first, so rows per second only rise.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Speed:
    """useful: useful tokens a second; left: seconds until the last slot is paid."""

    useful: float
    left: float

    @property
    def text(self) -> str:
        """`1,234 useful tokens/s, 12 s left`."""
        return f"{self.useful:,.0f} useful tokens/s, {self.left:.0f} s left"


def speed(seconds: float, useful: int, slots: int, left: int) -> Speed | None:
    """From `slots` paid, `useful` of them, in `seconds`, and those `left`; None before there are any."""
    if seconds <= 0 or slots <= 0:
        return None
    return Speed(useful / seconds, left * seconds / slots)
