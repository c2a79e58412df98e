"""The whole job on this machine, step after step: what the DAG does, without Airflow."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from staticjob import steps
from staticjob.config.job import JobConfig
from staticjob.finish import finish
from staticjob.layout import Work
from staticjob.merging.audit import warn_of_errors
from staticjob.prepare import prepare
from staticjob.records.output import Manifest
from staticjob.records.prepared import Prepared
from staticjob.records.status import RowError
from staticjob.running.pack import run_pack
from staticjob.running.progress import Reporter
from staticjob.running.watch import StopFlag

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """A finished job: its chunks, how many of them an earlier run had done, and its first row errors."""

    work: Work
    prepared: Prepared
    manifest: Manifest
    done: int
    reused: int
    first_errors: tuple[RowError, ...]


def run_job(config: JobConfig, shared_tokens: str | None = None) -> Outcome:
    """Run every step; what has its marker is kept. Raises what the steps raise.

    `shared_tokens`: as `prepare` takes it.
    """
    work, prepared, _ = prepare(config, shared_tokens=shared_tokens)
    log.info("fingerprint %s, %d files, work at %s", prepared.fingerprint[:16], len(prepared.files), work.uri)
    steps.tokenize(work, prepared, [split.id for split in prepared.splits])
    plan, reused_plan = steps.plan(work, prepared)
    log.info(
        "%s: %d chunks in %d rungs, %.1f%% of %d slots useful; %s",
        "plan kept" if reused_plan else "planned",
        len(plan.chunks),
        len(plan.rungs),
        100 * plan.ledger.useful_share,
        plan.ledger.slots,
        plan.forecast.basis,
    )
    steps.warn_without_rows(prepared, plan)
    warn_of_errors(prepared, plan)
    ids = [chunk.id for chunk in plan.chunks]
    with StopFlag() as stop, Reporter(plan, ids) as reporter:
        result = run_pack(work, prepared, plan, ids, stop, reporter)
        stop.check()
    if ids and result.reused == len(ids):
        log.info("nothing to compute: all %d chunks were done by an earlier run", len(ids))
    steps.merge(work, prepared, plan)
    manifest, _ = finish(work, prepared, plan)
    errors = (*plan.first_errors, *(error for commit in result.commits for error in commit.first_errors))
    return Outcome(work, prepared, manifest, len(result.commits), result.reused, errors)
