"""Make the output count: check all of it, describe it in a manifest, and write `_SUCCESS` last."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from staticjob import __version__, claim, storage
from staticjob.clock import now
from staticjob.errors import DataError, InfrastructureError
from staticjob.layout import Output, Work
from staticjob.ledger import Ledger
from staticjob.merge import displaced
from staticjob.merging.ahead import LOOKUPS_AHEAD, in_order
from staticjob.merging.audit import audit, check_error_rate, too_many_errors
from staticjob.merging.gather import read_commits
from staticjob.planning import history
from staticjob.planning.rates import measured_rates
from staticjob.records.commit import Commit
from staticjob.records.output import Manifest, MergeCommit
from staticjob.records.plan import MergeGroup, Plan
from staticjob.records.prepared import Prepared
from staticjob.records.status import Status
from staticjob.report.store import make_report, rerun_command, store_report

log = logging.getLogger(__name__)

# Each run that was overtaken writes `_SUCCESS` once at most.
SUCCESS_TRIES = 8


def finish(work: Work, prepared: Prepared, plan: Plan) -> tuple[Manifest, bool]:
    """Check and publish; returns the manifest and whether the output was finished before.

    Raises DataError when a chunk or group is unfinished, counts disagree, an output file is not
    the one that was merged, another run claimed the output, or more rows failed than
    `limits.max_error_rate` allows (manifest and report are written then, `_SUCCESS` is not, and the
    run is not recorded for the next forecast). Raises InfrastructureError when others take `_SUCCESS`
    away again and again.
    """
    output = Output(prepared.config.output.uri)
    held = claim.hold(output.uri, prepared.fingerprint)
    by_chunk = read_commits(work, plan.chunks)
    commits = list(by_chunk.values())
    merges = _read_merges(work, plan)
    statuses = audit(prepared, plan, by_chunk, merges)
    _check_standing(work, prepared, merges)
    manifest = _manifest(prepared, plan, commits, merges, statuses)
    before = _finished(output, manifest)
    if before is not None and not too_many_errors(prepared, plan, commits):
        log.info("%s: finished before by the same run, nothing to do", output.uri)
        return before, True
    report = make_report(prepared, plan, commits)
    claim.end_other_success(held)
    _remove_left_overs(held, prepared)
    held.check()
    storage.put_json(output.manifest, manifest)
    held.check()
    store_report(prepared, report)
    try:
        check_error_rate(prepared, plan, commits)
    except DataError:
        claim.withdraw_success(held)
        raise
    held.check()
    history.record(prepared, plan, manifest, commits)
    _succeed(held, work, prepared, merges)
    return manifest, False


def _read_merges(work: Work, plan: Plan) -> list[MergeCommit]:
    def one(group: MergeGroup) -> MergeCommit:
        merged = storage.find_json(work.merge(group.id), MergeCommit)
        if merged is None:
            raise DataError(
                f"group {group.id}: not merged; run `staticjob merge {work.uri} --group {group.id}` first"
            )
        return merged

    return list(in_order(one, plan.groups, LOOKUPS_AHEAD))


def _check_standing(work: Work, prepared: Prepared, merges: Sequence[MergeCommit]) -> None:
    uris = displaced(prepared, merges)
    if uris:
        raise DataError(
            f"{uris[0]}: gone, or not the file that was merged ({len(uris)} such files in all); run "
            f"`staticjob merge {work.uri}` again, then finish"
        )


def _manifest(
    prepared: Prepared,
    plan: Plan,
    commits: Sequence[Commit],
    merges: Sequence[MergeCommit],
    statuses: Mapping[Status, int],
) -> Manifest:
    config = prepared.config
    seconds = sum(commit.seconds + commit.start_seconds for commit in commits)
    engines: Counter[str] = Counter()
    for merged in merges:
        engines.update(merged.engines)
    versions = {"staticjob": __version__}
    for commit in commits:
        versions |= commit.versions
    return Manifest(
        job=config.name,
        task=config.task,
        fingerprint=prepared.fingerprint,
        rows=sum(statuses.values()),
        statuses=dict(statuses),
        ledger=sum((commit.ledger for commit in commits), Ledger()),
        files=tuple(sorted((f for m in merges for f in m.files), key=lambda file: file.index)),
        engines=dict(engines),
        forecast=plan.forecast,
        seconds=seconds,
        cost=None if config.cost.gpu_hour is None else seconds / 3600 * config.cost.gpu_hour,
        rates=measured_rates(plan, commits, f"run {prepared.fingerprint[:16]}"),
        versions=versions,
        command=rerun_command(prepared),
        finished=now(),
    )


def _finished(output: Output, manifest: Manifest) -> Manifest | None:
    """The standing manifest if `_SUCCESS` and it are of this run and of these very files."""
    if claim.success_of(output) != manifest.fingerprint:
        return None
    standing = storage.find_json(output.manifest, Manifest)
    if standing is None:
        return None
    same = (standing.fingerprint, standing.files) == (manifest.fingerprint, manifest.files)
    return standing if same else None


class _EarlierFile(BaseModel):
    output: str


class _Earlier(BaseModel):
    """Of another run's `job.json` what left-overs need, whichever version wrote the rest."""

    files: tuple[_EarlierFile, ...]


def _remove_left_overs(held: claim.Claim, prepared: Prepared) -> None:
    """Delete output files that other runs wrote here and this one does not: readers take them for rows."""
    own = {file.output for file in prepared.files}
    for fingerprint in claim.earlier_runs(held):
        other = storage.find_json(held.output.work(fingerprint).job, _Earlier)
        if other is None:
            continue
        others = {file.output for file in other.files} - own
        held.check()
        storage.delete([held.output.file(path) for path in sorted(others)])


def _succeed(held: claim.Claim, work: Work, prepared: Prepared, merges: Sequence[MergeCommit]) -> None:
    """Write `_SUCCESS` while every file stands and the claim holds; take it back when that was too late.

    One that an overtaken run wrote too late may lie there, until this run or that one takes it away.
    """
    _check_standing(work, prepared, merges)
    for _ in range(SUCCESS_TRIES):
        held.check()
        storage.put_if_absent(held.output.success, f"{held.fingerprint}\n".encode())
        if claim.success_of(held.output) == held.fingerprint:
            break
        claim.end_other_success(held)
    else:
        raise InfrastructureError(
            f"{held.output.success}: taken away or replaced {SUCCESS_TRIES} times; run `staticjob finish "
            f"{work.uri}` again once nothing else writes to this output"
        )
    try:
        held.check()
    except DataError:
        claim.withdraw_success(held)
        raise
