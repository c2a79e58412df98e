"""What must agree before an output counts: plan, chunk commits and merge commits."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from staticjob.errors import DataError
from staticjob.records.commit import Commit
from staticjob.records.output import MergeCommit
from staticjob.records.plan import Chunk, Plan
from staticjob.records.prepared import Prepared
from staticjob.records.status import RowError, Status

log = logging.getLogger(__name__)

SHOWN_ERRORS = 3


def audit(
    prepared: Prepared, plan: Plan, commits: Mapping[str, Commit], merges: Sequence[MergeCommit]
) -> dict[Status, int]:
    """Rows per status of the whole output.

    Raises DataError naming the chunk or file where plan, commits and output files disagree on
    rows, slots or statuses.
    """
    for chunk in plan.chunks:
        commit = commits[chunk.id]
        if not _as_planned(commit, chunk):
            raise DataError(
                f"chunk {chunk.id}: its commit has {commit.rows} rows in {commit.batches} batches and "
                f"{commit.ledger.slots} slots ({commit.ledger.useful} useful), the plan {chunk.rows} in "
                f"{chunk.batches} and {chunk.ledger.slots} ({chunk.ledger.useful}); "
                "delete the chunk's folder and run it again"
            )
    published_rows: dict[int, list[int]] = defaultdict(list)
    for merged in merges:
        for written in merged.files:
            published_rows[written.index].append(written.rows)
    for file, planned in zip(prepared.files, plan.file_rows, strict=True):
        if published_rows[file.index] != [planned]:
            raise DataError(
                f"{file.output}: published with {published_rows[file.index]} rows, {planned} planned (once); "
                "delete the work prefix and run the job again"
            )
    published = _total(merged.items or merged.statuses for merged in merges)
    expected = item_statuses(plan, commits.values())
    if published != expected:
        raise DataError(
            f"statuses differ: published {_spell(published)}, computed and answered "
            f"{_spell(expected)}; delete the work prefix and run the job again"
        )
    rows = _total(merged.statuses for merged in merges)
    return {status: rows[status] for status in Status if rows[status]}


def _as_planned(commit: Commit, chunk: Chunk) -> bool:
    """Whether rows, batches and slots are the plan's; what rows grow by, only the run can know."""
    if (commit.rows, commit.batches) != (chunk.rows, chunk.batches):
        return False
    texts = commit.generation
    return commit.ledger == (texts.prompts + texts.decode if texts else chunk.ledger)


def item_statuses(plan: Plan, commits: Iterable[Commit]) -> Counter[Status]:
    """Rows, or the elements of rows that are lists, per status: answered by tokenize and computed here."""
    return _total(commit.statuses for commit in commits) + Counter(plan.answered)


def too_many_errors(prepared: Prepared, plan: Plan, commits: Iterable[Commit]) -> bool:
    """Whether the rows with status error are more, of all rows, than the job allows.

    No later commit takes it back: with some of the commits, or none, it tells how the run will end.
    """
    failed = item_statuses(plan, commits)[Status.ERROR]
    return failed > prepared.config.limits.max_error_rate * plan.items


def check_error_rate(prepared: Prepared, plan: Plan, commits: Sequence[Commit]) -> None:
    """Raise DataError when there are too many rows with status error."""
    if too_many_errors(prepared, plan, commits):
        raise DataError(
            f"{_rate(prepared, plan, commits)}. There is no _SUCCESS: mend the rows or raise the limit, and "
            "run again"
        )


def warn_of_errors(prepared: Prepared, plan: Plan) -> None:
    """Say before anything is spent that the run will fail: too many rows have failed in tokenize."""
    if too_many_errors(prepared, plan, ()):
        log.warning(
            "warning: %s. The run would answer the other rows, write its report and end without _SUCCESS: "
            "mend the rows or raise the limit first",
            _rate(prepared, plan, ()),
        )


def _rate(prepared: Prepared, plan: Plan, commits: Sequence[Commit]) -> str:
    failed = item_statuses(plan, commits)[Status.ERROR]
    errors = [*plan.first_errors, *(error for commit in commits for error in commit.first_errors)]
    return (
        f"{failed} of {plan.items} rows have status error ({failed / plan.items:.2%}), limits.max_error_rate "
        f"allows {prepared.config.limits.max_error_rate:.2%}; first: "
        f"{'; '.join(map(_name, errors[:SHOWN_ERRORS]))}"
    )


def _name(error: RowError) -> str:
    return f"{error.file} {error.at}: {error.reason}"


def _total(counts: Iterable[Mapping[Status, int]]) -> Counter[Status]:
    total: Counter[Status] = Counter()
    for each in counts:
        total.update(each)
    return total


def _spell(counts: Mapping[Status, int]) -> str:
    return ", ".join(f"{status} {counts[status]}" for status in Status if counts.get(status))
