"""What becomes of one row's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from staticjob.config.job import LimitsConfig
from staticjob.records.status import Status


@dataclass(frozen=True)
class Encoded:
    """Outcome of one row: ids to run, or a status with a reason.

    `boundary` is the index of the first token of a second segment, -1 where there is none. `items` are the
    outcomes of the elements of a row that is a list: they stand for it, unless there are none.
    """

    ids: Sequence[int]
    status: Status
    reason: str = ""
    boundary: int = -1
    items: tuple[Encoded, ...] | None = None


def missing(role: str, text: str | None) -> Encoded | None:
    """The outcome of a row whose `role` has no text; None where it has one."""
    if text is None:
        return Encoded((), Status.NULL, f"no value in {role}")
    return None if text else Encoded((), Status.EMPTY, f"empty {role}")


def cut_or_refused(kept: Sequence[int], limit: int, limits: LimitsConfig, boundary: int = -1) -> Encoded:
    """A row of more than `limit` tokens: what is kept of it, or its refusal, as the job says."""
    if limits.overflow == "refuse":
        return Encoded((), Status.TOO_LONG, f"more than {limit} tokens")
    return Encoded(kept, Status.TRUNCATED, boundary=boundary)
