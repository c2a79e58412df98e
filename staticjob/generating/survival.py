"""How long rows live: the share still being written at each step, from what was seen so far.

Rows that were handed over, or still run, are known to have lived that long and no more (Kaplan and Meier
1958). Beyond the last step with enough rows the curve goes on as a power of the step: the lengths of
texts have heavy tails, and a power fitted to the last doubling neither expects the end at once nor never.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

# Rows of an earlier run count as at most this many of the present one: rows may have changed.
HISTORY_ROWS = 256
# At fewer rows at risk the next step's share of endings is noise.
LEAST_AT_RISK = 8

Counts = NDArray[np.float64]


class Observed:
    """Per token n (index n - 1): rows that generated it (at risk), and rows whose last it was (ended)."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.at_risk: Counts = np.zeros(cap)
        self.ended: Counts = np.zeros(cap)

    def add_curve(self, rows: int, active: Sequence[int]) -> None:
        """A batch as far as it was run: `active[i]` of its rows went on after token i + 1."""
        counts = np.array([rows, *active], np.float64)
        tokens = len(active)
        self.at_risk[:tokens] += counts[:-1]
        self.ended[:tokens] += counts[:-1] - counts[1:]

    def add_lengths(self, counts: Mapping[int, int]) -> None:
        """Rows known to their end: tokens generated (the cap for a row that the cap ended): rows."""
        lengths = np.minimum(np.fromiter(counts.keys(), np.int64), self.cap)
        ends = np.bincount(lengths, np.fromiter(counts.values(), float), minlength=self.cap + 1)
        self.at_risk += ends[::-1].cumsum()[::-1][1:]
        self.ended += ends[1:]

    def plus(self, earlier: Observed | None) -> Observed:
        """These rows and an earlier run's, whose weight is bounded."""
        both = Observed(self.cap)
        both.at_risk, both.ended = self.at_risk.copy(), self.ended.copy()
        if earlier is not None and earlier.at_risk[0]:
            weight = min(1.0, HISTORY_ROWS / earlier.at_risk[0])
            both.at_risk += weight * earlier.at_risk
            both.ended += weight * earlier.ended
        return both


def survival(seen: Observed) -> Counts:
    """S[n]: share of rows that generate more than n tokens, n = 0 … cap; S[cap] is 0.

    Without any ending seen, every row is expected to reach the cap.
    """
    cap = seen.cap
    enough = seen.at_risk >= LEAST_AT_RISK
    known = int(enough.sum())  # rows at risk only ever get fewer
    share = np.ones(cap + 1)
    hazard = np.divide(seen.ended, seen.at_risk, out=np.zeros(cap), where=seen.at_risk > 0)
    share[1 : known + 1] = np.cumprod(1 - hazard[:known])
    if known < cap and known:
        tokens = np.arange(known + 1, cap + 1)
        share[known + 1 :] = share[known] * (known / tokens) ** _power(share, seen, known)
    share[cap] = 0.0
    return share


def _power(share: Counts, seen: Observed, known: int) -> float:
    """Slope of ln S over ln n in the last doubling of n that was seen."""
    first = max(1, known // 2)
    endings = seen.ended[first:known].sum()
    if known < 2 or not endings or not share[known]:
        return 0.0
    return float(np.log(share[first] / share[known]) / np.log(known / first))
