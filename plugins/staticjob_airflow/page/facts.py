"""The job of a run and its past, read for whoever shows it."""

from __future__ import annotations

from staticjob.planning import history
from staticjob.status import JobStatus
from staticjob_airflow.page.document import Trend
from staticjob_airflow.page.runs import Run
from staticjob_airflow.page.snapshots import Snapshots
from staticjob_airflow.page.trend import trend


def status_of(run: Run, snapshots: Snapshots) -> JobStatus | None:
    """The job of a run; None before it is prepared."""
    return None if run.work is None else snapshots.get(run.work, run.aws_conn_id, latest=run.info.final)


def trend_of(status: JobStatus) -> Trend:
    """The last runs of the job, this one among them."""
    output = status.prepared.config.output
    past = history.read(output.history_uri) if output.history_uri else None
    return trend(past, (status.prepared.fingerprint, output.uri))
