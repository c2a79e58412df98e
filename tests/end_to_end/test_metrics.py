"""What runs send as metrics through a real Airflow."""

from __future__ import annotations

import pytest
from airflow_runs import Run, until
from statsd_server import Received, Sent

from staticjob import storage
from staticjob.records.output import Manifest


def test_what_a_run_computed_arrives_once_where_airflows_statsd_settings_point(
    runs: dict[str, Run], statsd: Received
) -> None:
    run = runs["undisturbed"]
    run.succeeds()
    manifest = storage.read_json(run.output.manifest, Manifest)
    assert manifest.cost is not None
    assert manifest.statuses
    gauges = {
        "run.useful_share": manifest.ledger.useful_share,
        "run.active_share": 1.0,  # all rows of a batch end together
        "run.seconds": manifest.seconds,
        "run.cost": manifest.cost,
    }
    counters = {"slots": manifest.ledger.slots, "useful_tokens": manifest.ledger.useful}
    tags = {"dag_id": run.dag_id}
    expected = [
        *(("rows", "c", count, {**tags, "status": status}) for status, count in manifest.statuses.items()),
        *((name, "c", count, tags) for name, count in counters.items()),
        *((name, "g", pytest.approx(value), tags) for name, value in gauges.items()),
    ]

    def sent() -> list[Sent]:
        return [each for each in statsd.of(run.dag_id) if each.name != "airflow.staticjob.retries"]

    until(lambda: len(sent()) >= len(expected), "the metrics")
    assert [
        (each.name.removeprefix("airflow.staticjob."), each.kind, each.value, each.tags) for each in sent()
    ] == expected
