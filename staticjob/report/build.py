"""The report's numbers from the plan and the commits; nothing is measured or read here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from staticjob.engine.flops import forward_bytes, forward_flops
from staticjob.ledger import Ledger
from staticjob.memory import DTYPE_BYTES
from staticjob.planning.forecast import seconds_per_slot
from staticjob.records.commit import Commit
from staticjob.records.plan import Plan, Rung
from staticjob.records.prepared import Prepared
from staticjob.records.status import RowError, Status
from staticjob.report.data import CostReport, MemoryReport, Report, RunAgain, RungReport, TimeReport
from staticjob.report.texts import texts_of

SHOWN_ERRORS = 20


def build(
    prepared: Prepared,
    plan: Plan,
    commits: Sequence[Commit],
    *,
    model_config: Mapping[str, Any],
    command: str,
    generated: str,
) -> Report:
    """The report of a run, finished or not: `commits` are those of the plan's chunks so far.

    `model_config` is the model's config.json. Device time is every try's last: what a killed try
    computed and flushed counts as kept batches, without its seconds.
    """
    by_length: dict[int, list[Commit]] = defaultdict(list)
    for commit in commits:
        by_length[commit.length].append(commit)
    planned_ceilings = plan.rates.ceilings if plan.rates else None
    paid = sum((commit.ledger for commit in commits), Ledger())
    time = _time(plan, commits)
    answered = _statuses(plan, commits)
    largest = max(plan.memory.shapes, key=lambda shape: shape.bytes, default=None)
    config = prepared.config
    return Report(
        job=config.name,
        task=config.task,
        state="done" if len(commits) == len(plan.chunks) else "unfinished",
        input=config.input.uri,
        output=config.output.uri,
        generated=generated,
        files=len(prepared.files),
        rows=sum(plan.file_rows),
        statuses=answered,
        items=plan.items,
        rows_pending=plan.items - sum(answered.values()),
        chunks_done=len(commits),
        chunks=len(plan.chunks),
        tokens=plan.ledger.useful,
        ledger=plan.ledger,
        paid=paid,
        useful_share=(paid if commits else plan.ledger).useful_share,
        orders=plan.orders,
        rungs=tuple(_rung(plan, rung, by_length[rung.length], model_config) for rung in plan.rungs),
        useful_tokens_per_second=_ratio(_computed(commits), time.measured),
        time=time,
        cost=_cost(plan, time, config.cost.gpu_hour, _computed(commits)),
        memory=MemoryReport(
            device=plan.memory.device,
            available=plan.memory.available,
            predicted=plan.memory.peak,
            measured=max((c.peak_bytes for c in commits if c.peak_bytes), default=None),
            terms=largest.terms if largest else (),
            shape=(largest.length, largest.batch) if largest else None,
        ),
        ceilings=next((c.ceilings for c in commits if c.ceilings), planned_ceilings),
        texts=texts_of(commits),
        errors=_errors(plan, commits),
        again=_again(prepared, plan, commits, command),
    )


def _ratio(above: float, below: float | None) -> float | None:
    return above / below if below else None


def _computed(commits: Sequence[Commit]) -> float:
    """Useful tokens whose time was measured: without the share of batches kept from earlier tries."""
    batches = sum(commit.batches for commit in commits)
    kept = sum(commit.kept_batches for commit in commits)
    useful = sum(commit.useful_tokens for commit in commits)
    return useful * (batches - kept) / batches if batches else 0.0


def _time(plan: Plan, commits: Sequence[Commit]) -> TimeReport:
    compute = sum(commit.compute_seconds for commit in commits)
    start = sum(commit.start_seconds for commit in commits)
    other = max(0.0, sum(commit.seconds for commit in commits) - compute)
    return TimeReport(
        predicted=plan.forecast.seconds,
        basis=plan.forecast.basis,
        measured=compute + start + other if commits else None,
        compute=compute,
        start=start,
        other=other,
        kept_batches=sum(commit.kept_batches for commit in commits),
    )


def _cost(plan: Plan, time: TimeReport, gpu_hour: float | None, useful: float) -> CostReport:
    known = gpu_hour is not None and time.measured is not None
    measured = time.measured / 3600 * gpu_hour if known else None  # type: ignore[operator]
    return CostReport(
        gpu_hour=gpu_hour,
        predicted=plan.forecast.cost,
        measured=measured,
        predicted_per_million=plan.forecast.cost_per_million_useful_tokens,
        measured_per_million=measured / useful * 1e6 if measured is not None and useful else None,
    )


def _rung(plan: Plan, rung: Rung, commits: Sequence[Commit], model_config: Mapping[str, Any]) -> RungReport:
    run = sum(commit.batches - commit.kept_batches for commit in commits)
    seconds = sum(commit.compute_seconds for commit in commits)
    per_batch = seconds / run if run and seconds else None
    done = sum((commit.ledger for commit in commits), Ledger())
    share = rung.ledger.useful_share
    # A batch that generates is many passes, not one.
    once = None if any(c.generation for c in commits) else per_batch
    flops = _ratio(forward_flops(dict(model_config), rung.length, rung.batch), once)
    width = DTYPE_BYTES[commits[0].dtype if commits else plan.memory.dtype]
    traffic = forward_bytes(dict(model_config), rung.length, rung.batch, width)
    shape = next(s for s in plan.memory.shapes if (s.length, s.batch) == (rung.length, rung.batch))
    return RungReport(
        length=rung.length,
        batch=rung.batch,
        rows=rung.rows,
        batches=rung.batches,
        ledger=rung.ledger,
        done=done,
        useful_share=share,
        predicted_seconds=(
            rung.ledger.slots * seconds_per_slot(plan.rates, rung.length)
            if plan.rates and plan.rates.shapes
            else None
        ),
        seconds=per_batch * rung.batches if per_batch else None,
        seconds_per_batch=per_batch,
        useful_tokens_per_second=_ratio(rung.batch * rung.length * share, per_batch),
        flops=flops,
        useful_flops=flops * share if flops else None,
        bytes_per_second=_ratio(traffic, once),
        predicted_bytes=shape.bytes,
        measured_bytes=max((c.peak_bytes for c in commits if c.peak_bytes), default=None),
    )


def _statuses(plan: Plan, commits: Sequence[Commit]) -> dict[Status, int]:
    """Rows answered: without a model at tokenization, and by the committed chunks."""
    total = Counter(plan.answered)
    for commit in commits:
        total.update(commit.statuses)
    return {status: total[status] for status in Status if total[status]}


def _errors(plan: Plan, commits: Sequence[Commit]) -> tuple[RowError, ...]:
    errors = [*plan.first_errors, *(error for commit in commits for error in commit.first_errors)]
    return tuple(errors[:SHOWN_ERRORS])


def _again(prepared: Prepared, plan: Plan, commits: Sequence[Commit], command: str) -> RunAgain:
    versions: dict[str, str] = {"staticjob": prepared.staticjob}
    for commit in commits:
        versions |= commit.versions
    settings = prepared.config.model_dump(mode="json", exclude_defaults=True)
    return RunAgain(
        fingerprint=prepared.fingerprint,
        command=command,
        settings=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True),
        model_source=prepared.model.source,
        model_digest=prepared.model.digest,
        device=commits[0].device if commits else plan.memory.device,
        dtype=commits[0].dtype if commits else plan.memory.dtype,
        versions=versions,
        workers=tuple(sorted({commit.worker for commit in commits})),
    )
