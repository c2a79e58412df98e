"""What earlier runs of a job measured, kept beside its dated outputs for the next forecast."""

from __future__ import annotations

import logging

from pydantic import Field

from staticjob import storage
from staticjob.errors import DataError
from staticjob.records import Ledger, Rates, Record

log = logging.getLogger(__name__)

KEPT_RUNS = 30


class Run(Record):
    """One finished run."""

    fingerprint: str
    output: str
    rows: int
    ledger: Ledger
    seconds: float
    cost: float | None
    finished: str


class History(Record):
    """`_staticjob/history/<job>.json`: the newest rates and the last runs, oldest first."""

    model_digest: str
    rates: Rates | None
    device_memory: int | None = Field(description="bytes of the device the rates were measured on")
    runs: tuple[Run, ...] = ()


def read(uri: str) -> History | None:
    """The job's history; None before its first finished run, and where another version wrote it."""
    try:
        return storage.find_json(uri, History)
    except DataError as error:  # a forecast is not worth stopping a job
        log.warning("%s; planning without it", error)
        return None


def append(uri: str, run: Run, model_digest: str, rates: Rates | None, device_memory: int | None) -> None:
    """Add a finished run, replacing an earlier record of the same fingerprint and output.

    The last writer wins: two runs that finish at once may lose one line of history, no result.
    """
    old = read(uri)
    runs = [
        r for r in (old.runs if old else ()) if (r.fingerprint, r.output) != (run.fingerprint, run.output)
    ]
    kept = rates or (old.rates if old else None)
    storage.put_json(
        uri,
        History(
            model_digest=model_digest,
            rates=kept,
            device_memory=device_memory or (old.device_memory if old else None),
            runs=(*runs, run)[-KEPT_RUNS:],
        ),
    )
