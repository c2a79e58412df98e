"""Rungs from a length histogram, and what becomes of the rows that do not fill a batch.

A batch at rung L holds B = max(1, budget // L) rows and costs B x L slots. The rows left over
when a rung is filled with whole batches are either padded with dummy rows or promoted to the
next longer rung, where they cost more padding but may fill a batch. Both decisions, which rungs
and which remainders are promoted, are taken together by one exact dynamic programme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from staticjob.errors import ConfigError

Histogram = Mapping[int, int]

# Above this many candidate lengths the grid is coarsened (still multiples of 8): the search grows
# with its square, and a rung more or less in a thousand positions is worth little.
MAX_CANDIDATES = 256


@dataclass(frozen=True)
class Fill:
    """What one rung runs: `rows` real rows in `batches` batches of [batch, length]."""

    length: int
    batch: int
    rows: int
    batches: int

    @property
    def slots(self) -> int:
        return self.batches * self.batch * self.length


def batch_rows(length: int, budget: int) -> int:
    """Rows of one batch at a rung: the token budget held constant, at least one row."""
    return max(1, budget // length)


def choose_rungs(
    histogram: Histogram,
    budget: int,
    *,
    max_rungs: int | Literal["auto"],
    rung_cost: float,
    max_length: int,
    multiple: int = 8,
    fixed: Sequence[int] | None = None,
    growth: int = 0,
) -> tuple[int, ...]:
    """The rungs, ascending, that minimise slots + `rung_cost` per rung over the histogram.

    Where rows grow by up to `growth` tokens, a rung of L tokens has rectangles of L + growth slots a row.

    `rung_cost` is what one more rung costs (warm-up, capture), in slots. Rungs are multiples of
    `multiple`, but never longer than `max_length`, the model's limit. A `fixed` ladder is returned
    as it is once it is known to hold every row; ConfigError when it does not.
    """
    longest = _longest(histogram)
    if longest > max_length:
        raise ConfigError(
            f"a row of {longest} tokens exceeds the limit of {max_length}; tokenize again with this limit"
        )
    if fixed is not None:
        if fixed[-1] > max_length:
            raise ConfigError(
                f"batching.ladder: rung {fixed[-1]} exceeds the limit of {max_length} tokens; "
                "leave it out or raise limits.max_length"
            )
        _refuse_longer(longest, fixed[-1])
        return tuple(fixed)
    candidates = _candidates(histogram, max_length, multiple)
    limit = None if max_rungs == "auto" else max_rungs
    return tuple(fill.length for fill in _best_fills(histogram, candidates, budget, rung_cost, limit, growth))


def fill_rungs(histogram: Histogram, rungs: Sequence[int], budget: int, growth: int = 0) -> tuple[Fill, ...]:
    """Place every row of the histogram in the given rungs with the fewest slots, ascending.

    Rungs that stay empty are left out. ConfigError when a row is longer than the last rung.
    """
    if rungs:
        _refuse_longer(_longest(histogram), rungs[-1])
    return _best_fills(histogram, list(rungs), budget, 0.0, None, growth)


def _longest(histogram: Histogram) -> int:
    return max((length for length, count in histogram.items() if count), default=0)


def _refuse_longer(longest: int, last: int) -> None:
    if longest > last:
        raise ConfigError(
            f"batching.ladder: a row has {longest} tokens but the last rung is {last}; "
            f"add a rung of at least {longest} or set limits.max_length to {last}"
        )


def _candidates(histogram: Histogram, max_length: int, multiple: int) -> list[int]:
    """Lengths worth a rung: each present length rounded up, on a grid coarse enough to search."""
    present = [length for length, count in histogram.items() if count]
    while True:
        rounded = {min(-(-length // multiple) * multiple, max_length) for length in present}
        if len(rounded) <= MAX_CANDIDATES:
            return sorted(rounded)
        multiple *= 2


# A partial ladder: its last rung, the rows no longer than that rung, how many of them it carries on
# to the next rung, slots + rung costs so far, its own number and that of the state it extends.
_STATE = np.dtype(
    [
        ("rung", "<i8"),
        ("below", "<i8"),
        ("carry", "<i8"),
        ("cost", "<f8"),
        ("number", "<i8"),
        ("origin", "<i8"),
    ]
)
_States = npt.NDArray[Any]


def _best_fills(
    histogram: Histogram,
    candidates: Sequence[int],
    budget: int,
    rung_cost: float,
    max_rungs: int | None,
    growth: int,
) -> tuple[Fill, ...]:
    """The cheapest choice of rungs among ascending `candidates` and of promoted remainders.

    Goes from the shortest to the longest; every state extends one that ends at a shorter rung.
    With `max_rungs`, pass k extends only the ladders of k - 1 rungs that pass k - 1 left.
    """
    lengths = sorted(length for length, count in histogram.items() if count)
    if not lengths:
        return ()
    sums = np.concatenate([[0], np.cumsum([histogram[n] for n in lengths], dtype=np.int64)])
    upto = sums[np.searchsorted(lengths, candidates, side="right")]
    root = np.array([(-1, 0, 0, 0.0, 0, -1)], _STATE)
    book, made, complete = [root], 1, []
    pool = root
    for _ in range(max_rungs or 1):
        grown = [] if max_rungs else [pool]
        for rung, length in enumerate(candidates):
            shorter = pool[: np.searchsorted(pool["rung"], rung)] if max_rungs else np.concatenate(grown)
            if not len(shorter):
                continue
            width = length + growth
            states = _extend(shorter, int(upto[rung]), width, batch_rows(width, budget), rung_cost)
            states["rung"] = rung
            states["number"] = made + np.arange(len(states))
            made += len(states)
            grown.append(states)
            if upto[rung] == sums[-1]:
                complete.append(states[0])
        pool = np.concatenate(grown) if grown else pool[:0]
        book.extend(grown if max_rungs else grown[1:])
    everything = np.concatenate(book)
    end = min(complete, key=lambda state: float(state["cost"]))
    return _trace(everything, end, candidates, budget, growth)


def _extend(shorter: _States, below: int, length: int, batch: int, rung_cost: float) -> _States:
    """All ways worth keeping to end at this rung: first the padded one (nothing carried), then
    the promoting ones by rising carry.

    Of two states at one rung, the one that costs no less and carries no fewer rows is dropped:
    a missing row can always be replaced by a dummy, so it never wins.
    """
    rows = shorter["carry"] + below - shorter["below"]
    full, rest = np.divmod(rows, batch)
    spent = shorter["cost"] + full * float(batch * length) + rung_cost
    padded = spent + (rest > 0) * float(batch * length)
    order = np.lexsort((spent, rest))
    order = order[(full[order] > 0) & (rest[order] > 0)]
    cheapest = int(np.argmin(padded))
    so_far = np.minimum.accumulate(np.concatenate([[padded[cheapest]], spent[order]]))
    order = order[spent[order] < so_far[:-1]]
    states = np.zeros(1 + len(order), _STATE)
    states["below"] = below
    states["carry"][1:] = rest[order]
    states["cost"] = np.concatenate([[padded[cheapest]], spent[order]])
    states["origin"] = np.concatenate([[shorter["number"][cheapest]], shorter["number"][order]])
    return states


def _trace(
    everything: _States, end: Any, candidates: Sequence[int], budget: int, growth: int
) -> tuple[Fill, ...]:
    """The fills along the chain of states that led to `end`, shortest rung first."""
    fills: list[Fill] = []
    while end["origin"] >= 0:
        before = everything[end["origin"]]
        length = candidates[int(end["rung"])]
        batch = batch_rows(length + growth, budget)
        rows = int(before["carry"] + end["below"] - before["below"] - end["carry"])
        if rows:
            fills.append(Fill(length, batch, rows, -(-rows // batch)))
        end = before
    return tuple(reversed(fills))
