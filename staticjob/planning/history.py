"""What earlier runs of a job measured, kept beside its dated outputs for the next forecast."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from staticjob import storage
from staticjob.config.job import JobConfig
from staticjob.errors import DataError
from staticjob.generating.curve_history import Earlier
from staticjob.ledger import Ledger
from staticjob.planning.rates import with_earlier
from staticjob.records.commit import Commit
from staticjob.records.output import Manifest
from staticjob.records.plan import Plan
from staticjob.records.prepared import Prepared
from staticjob.records.rates import Rates
from staticjob.records.record import Record

log = logging.getLogger(__name__)

KEPT_RUNS = 30
# Different for every date, or nothing to do with what is computed.
NO_SETTINGS = frozenset({"input.uri", "output.uri", "output.history_uri", "airflow"})


class Run(Record):
    """One finished run."""

    fingerprint: str
    output: str
    rows: int
    ledger: Ledger
    seconds: float
    cost: float | None
    finished: str
    tokens: int = Field(default=0, description="useful ones, texts included; 0 from an earlier version")
    settings: dict[str, str] = Field(
        default_factory=dict, description="as `settings_of` says; empty where an earlier version wrote it"
    )


class History(Record):
    """`_staticjob/history/<job>.json`: the newest rates and the last runs, oldest first."""

    model_digest: str
    rates: Rates | None
    device_memory: int | None = Field(description="bytes of the device the rates were measured on")
    runs: tuple[Run, ...] = ()
    generation: Earlier | None = Field(default=None, description="of the newest run that generated")


def settings_of(
    config: JobConfig, *, model_digest: str, device: str, versions: Mapping[str, str]
) -> dict[str, str]:
    """What tells one run's speed and results from another's, by dotted key of the job file.

    Keys left to their default are not there. The model's files, the device and the versions follow.
    """
    return {
        **dict(_flat(config.model_dump(mode="json", exclude_defaults=True))),
        "model files": model_digest[:16],
        "device": device,
        **{f"version of {name}": version for name, version in versions.items()},
    }


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in section.items():
        key = f"{prefix}{name}"
        if key in NO_SETTINGS:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value if isinstance(value, str) else json.dumps(value)


def read(uri: str) -> History | None:
    """The job's history; None before its first finished run, and where another version wrote it."""
    try:
        return storage.find_json(uri, History)
    except DataError as error:  # a forecast is not worth stopping a job
        log.warning("%s; planning without it", error)
        return None


def earlier_texts(uri: str | None, model_digest: str) -> Earlier:
    """What the job's last run with the same model says about its texts; empty where there was none."""
    past = read(uri) if uri else None
    known = past.generation if past and past.model_digest == model_digest else None
    return known or Earlier()


def record(prepared: Prepared, plan: Plan, manifest: Manifest, commits: Sequence[Commit]) -> None:
    """Add a finished run to its job's history, if it keeps one."""
    config, model_digest = prepared.config, prepared.model.digest
    uri = config.output.history_uri
    if uri is None:
        return
    run = Run(
        fingerprint=prepared.fingerprint,
        output=config.output.uri,
        rows=manifest.rows,
        ledger=manifest.ledger,
        seconds=manifest.seconds,
        cost=manifest.cost,
        finished=manifest.finished,
        tokens=sum(commit.useful_tokens for commit in commits),
        settings=settings_of(
            config,
            model_digest=model_digest,
            device=manifest.rates.device if manifest.rates else plan.memory.device,
            versions=manifest.versions,
        ),
    )
    texts = None
    if config.generate:
        outcomes = [(c.length, c.generation) for c in commits if c.generation]
        texts = Earlier.of(config.generate.max_new_tokens, outcomes, earlier_texts(uri, model_digest))
    append(uri, run, model_digest, manifest.rates, plan.memory.available, texts)


def append(
    uri: str,
    run: Run,
    model_digest: str,
    rates: Rates | None,
    device_memory: int | None,
    generation: Earlier | None = None,
) -> None:
    """Add a finished run, replacing an earlier record of the same fingerprint and output.

    What a run did not measure, lengths it did not run included, stays as an earlier one of the same
    model measured it.
    The last writer wins: two runs that finish at once may lose one line of history, no result.
    """
    old = read(uri)
    runs = [
        r for r in (old.runs if old else ()) if (r.fingerprint, r.output) != (run.fingerprint, run.output)
    ]
    same = old if old and old.model_digest == model_digest else None
    known = same.rates if same else None
    storage.put_json(
        uri,
        History(
            model_digest=model_digest,
            rates=with_earlier(rates, known) if rates else known,
            device_memory=device_memory or (old.device_memory if old else None),
            runs=(*runs, run)[-KEPT_RUNS:],
            generation=generation or (same.generation if same else None),
        ),
    )
