"""How far a job is, from the small objects its steps write: what CLI, demo and run page show."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from staticjob import claim, storage
from staticjob.errors import ConfigError
from staticjob.layout import WORK_FOLDER, Output, Work
from staticjob.ledger import Ledger
from staticjob.merging.audit import item_statuses, too_many_errors
from staticjob.records.commit import Commit, Progress
from staticjob.records.plan import Plan
from staticjob.records.prepared import Prepared, Started
from staticjob.records.record import Record
from staticjob.records.status import FIRST_ERRORS, RowError, Status
from staticjob.storage.pinned import PinnedObject
from staticjob.uris import absolute_uri

# A chunk whose heartbeat is older than this counts as waiting: its process is gone.
SILENT_SECONDS = 60.0
READERS = 16

# overtaken: computed, and another run has claimed the output.
State = Literal[
    "prepared", "tokenizing", "planned", "running", "failed", "stopped", "merging", "overtaken", "done"
]
T = TypeVar("T")
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class JobStatus:
    """A snapshot of one job.

    progress: of the chunks that are not committed. reused: commits older than the latest start.
    """

    work: Work
    prepared: Prepared
    plan: Plan | None
    state: State
    splits_done: int
    commits: tuple[Commit, ...]
    progress: tuple[Progress, ...]
    reused: int

    @property
    def ledger(self) -> Ledger:
        """Slots computed so far, running chunks included."""
        return sum((*(c.ledger for c in self.commits), *(p.ledger for p in self.progress)), Ledger())

    @property
    def rows_done(self) -> int:
        return sum(c.rows for c in self.commits) + sum(p.rows_done for p in self.progress)

    @property
    def statuses(self) -> dict[Status, int]:
        """Rows answered so far per status: by tokenize, and by the committed chunks."""
        known = item_statuses(self.plan, self.commits) if self.plan else {}
        return {status: known[status] for status in Status if known.get(status)}

    @property
    def report(self) -> str | None:
        """Where the report of a finished job lies, whether or not too many rows failed."""
        ended = self.plan is not None and len(self.commits) == len(self.plan.chunks)
        written = ended and self.state in ("done", "failed")
        return Output(self.prepared.config.output.uri).report_html if written else None

    def trouble(self) -> list[str]:
        """Why the job does not go on, or will end in vain, as far as its objects say."""
        lines = [f"{p.chunk}: {p.reason}" for p in self.progress if p.state in ("failed", "stopped")]
        if self.plan and too_many_errors(self.prepared, self.plan, self.commits):
            failed = item_statuses(self.plan, self.commits)[Status.ERROR]
            ceiling = self.prepared.config.limits.max_error_rate
            end = "" if self.state == "failed" else "; the run will end without _SUCCESS"
            lines.append(f"{failed} rows have status error, limits.max_error_rate allows {ceiling:.2%}{end}")
        return lines

    def first_errors(self) -> list[RowError]:
        """The first row errors, from tokenize and from the chunks."""
        errors = list(self.plan.first_errors) if self.plan else []
        return (errors + [e for c in self.commits for e in c.first_errors])[:FIRST_ERRORS]


def alive(progress: Progress) -> bool:
    """Whether a running chunk's heartbeat is recent."""
    beat = dt.datetime.fromisoformat(progress.heartbeat)
    return (dt.datetime.now(dt.UTC) - beat).total_seconds() < SILENT_SECONDS


def find_work(uri: str) -> Work:
    """The work prefix that `uri` means: itself, or the one whose run holds the output folder.

    Raises ConfigError when no job was ever prepared there.
    """
    uri = absolute_uri(uri)
    if f"/{WORK_FOLDER}/" in uri:
        work = Work(uri.rstrip("/"))
        if storage.head(work.job) is not None:
            return work
        raise ConfigError(f"{uri}: no job.json here; give an output folder or the URI that prepare printed")
    output = Output(uri)
    held = claim.holder(output)
    if held is None:
        raise ConfigError(f"{uri}: no job has this folder as its output")
    return output.work(held.fingerprint)


class Read(Protocol):
    """Reads a stored record, given the object as it was listed."""

    def __call__(self, source: PinnedObject, kind: type[R]) -> R: ...


def read_object(source: PinnedObject, kind: type[R]) -> R:
    """The record as it is stored now."""
    return storage.read_json(source.uri, kind)


def read_status(uri: str, read: Read = read_object) -> JobStatus:
    """Take a snapshot of the job at an output folder or a work prefix.

    read: for who looks again and again, and need not read again what has not changed. Raises
    ConfigError where there is no job.
    """
    work = find_work(uri)
    present = {obj.uri: obj for obj in storage.list_objects(work.uri + "/")}
    if work.job not in present:
        raise ConfigError(f"{work.uri}: this work prefix is gone; run the job again")
    prepared = read(present[work.job], Prepared)
    if prepared.tokens:
        work = Work(work.uri, prepared.tokens)
        present |= {obj.uri: obj for obj in storage.list_objects(work.tokens + "/")}
    output = Output(prepared.config.output.uri)
    plan = read(present[work.plan], Plan) if work.plan in present else None
    splits_done = sum(1 for split in prepared.splits if work.split(split.id) in present)
    ids = [chunk.id for chunk in plan.chunks] if plan else []
    commits = _gather(
        lambda c: read(present[work.commit(c)], Commit), [c for c in ids if work.commit(c) in present]
    )
    done = {commit.chunk for commit in commits}
    progress = _gather(
        lambda c: read(present[work.progress(c)], Progress),
        [c for c in ids if c not in done and work.progress(c) in present],
    )
    started = read(present[work.started], Started).started if work.started in present else ""
    return JobStatus(
        work=work,
        prepared=prepared,
        plan=plan,
        state=_state(output, prepared, plan, splits_done, commits, progress),
        splits_done=splits_done,
        commits=tuple(commits),
        progress=tuple(progress),
        reused=sum(1 for commit in commits if commit.finished < started),
    )


def _gather(read: Callable[[str], T], names: Iterable[str]) -> list[T]:
    context = copy_context()  # says which store is meant; one copy each, as threads cannot share one
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda name: context.copy().run(read, name), names))


def _state(
    output: Output,
    prepared: Prepared,
    plan: Plan | None,
    splits_done: int,
    commits: list[Commit],
    progress: list[Progress],
) -> State:
    if claim.success_of(output) == prepared.fingerprint:
        return "done"
    if plan is None:
        return "tokenizing" if splits_done else "prepared"
    if len(commits) == len(plan.chunks):
        if too_many_errors(prepared, plan, commits):
            return "failed"
        held = claim.holder(output)
        return "overtaken" if held and held.fingerprint != prepared.fingerprint else "merging"
    if any(p.state == "running" and alive(p) for p in progress):
        return "running"
    if any(p.state == "failed" for p in progress):
        return "failed"
    if any(p.state == "stopped" for p in progress):
        return "stopped"
    return "running" if commits else "planned"
