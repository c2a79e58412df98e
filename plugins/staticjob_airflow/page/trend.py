"""The job's last runs as a trend, each with what changed in its configuration since the run before."""

from __future__ import annotations

from staticjob.planning.history import History, Run
from staticjob_airflow.page.document import Change, Trend, TrendRun


def trend(history: History | None, shown: tuple[str, str] | None = None) -> Trend:
    """The runs of a history, oldest first. shown: fingerprint and output of the run on the page."""
    runs = history.runs if history else ()
    before: tuple[Run | None, ...] = (None, *runs)
    return Trend(
        runs=tuple(
            TrendRun(
                finished=run.finished,
                output=run.output,
                fingerprint=run.fingerprint,
                shown=(run.fingerprint, run.output) == shown,
                rows=run.rows,
                useful_share=run.ledger.useful_share,
                tokens_per_second=(run.tokens or run.ledger.useful) / run.seconds if run.seconds else None,
                seconds=run.seconds,
                cost=run.cost,
                changes=_changes(earlier, run) if earlier else (),
            )
            for earlier, run in zip(before, runs, strict=False)
        )
    )


def _changes(before: Run, after: Run) -> tuple[Change, ...]:
    """Settings that differ; nothing where a run was recorded without them."""
    if not before.settings or not after.settings:
        return ()
    keys = sorted(before.settings.keys() | after.settings.keys())
    pairs = ((key, before.settings.get(key), after.settings.get(key)) for key in keys)
    return tuple(Change(key=key, before=old, after=new) for key, old, new in pairs if old != new)
