"""The overview's line of a job: the state of its newest run, the numbers of the newest run that has some."""

from __future__ import annotations

from staticjob.errors import StaticJobError
from staticjob_airflow.page.data import job_page
from staticjob_airflow.page.document import JobLine, Notice
from staticjob_airflow.page.facts import status_of, trend_of
from staticjob_airflow.page.reasons import held_up, without_job
from staticjob_airflow.page.runs import Run, prepared_before
from staticjob_airflow.page.snapshots import Snapshots
from staticjob_airflow.stores import Stores


def job_line(run: Run, snapshots: Snapshots, stores: Stores) -> JobLine:
    """The line; what cannot be read is said in it and spoils no other line. run: the DAG's newest."""
    notice = held_up(run) or (without_job(run) if run.work is None else None)
    try:
        return _line(run, run, notice, snapshots, stores) or _earlier_line(run, notice, snapshots, stores)
    except StaticJobError as error:
        return JobLine(run=run.info, notice=Notice(text=str(error)))


def _earlier_line(run: Run, notice: Notice | None, snapshots: Snapshots, stores: Stores) -> JobLine:
    for earlier in prepared_before(run):
        line = _line(run, earlier, notice, snapshots, stores)
        if line is not None:
            return line
    return JobLine(run=run.info, notice=notice)


def _line(
    run: Run, facts: Run, notice: Notice | None, snapshots: Snapshots, stores: Stores
) -> JobLine | None:
    """The line with the numbers of the run `facts`; None where it has none."""
    with stores.reading(facts.aws_conn_id):
        status = status_of(facts, snapshots)
        if status is None or status.plan is None:
            return None
        past = trend_of(status)
    page = job_page(status)
    return JobLine(
        run=run.info,
        notice=notice,
        facts_of=None if facts is run else facts.info,
        rows_done=page.totals.rows_done if page.totals else None,
        rows=page.totals.rows if page.totals else None,
        useful_share=page.totals.useful_share if page.totals else None,
        cost=page.money.cost if page.money else None,
        trend=past,
    )
