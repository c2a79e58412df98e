"""What runs do and did, as metrics of Airflow's own: StatsD or OpenTelemetry, as its settings say.

All carry the tag `dag_id`, as Airflow's own do: Prometheus has a label `job` of its own, and a tag of that
name would be renamed or lost. Plain StatsD has no tags: `statsd_influxdb_enabled` or `otel_on` keeps them.
A run counts once, when it is finished: steps that found their work done add nothing. While it goes on,
each pack that writes texts says how many of its rows have not ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

ROWS = "staticjob.rows"
SLOTS = "staticjob.slots"
USEFUL_TOKENS = "staticjob.useful_tokens"
RETRIES = "staticjob.retries"
ACTIVE_ROWS = "staticjob.active_rows"
DECODING_ROWS = "staticjob.decoding_rows"
RUN_USEFUL_SHARE = "staticjob.run.useful_share"
RUN_ACTIVE_SHARE = "staticjob.run.active_share"
RUN_SECONDS = "staticjob.run.seconds"
RUN_COST = "staticjob.run.cost"


SWITCHES = ("statsd_on", "statsd_datadog_enabled", "otel_on")


def wanted() -> bool:
    """Whether Airflow sends metrics anywhere."""
    return any(conf.getboolean("metrics", switch, fallback=False) for switch in SWITCHES)


def rows_active(dag_id: str, pack: int, active: int, decoding: int) -> None:
    """Rows not ended of the batches that decode now, and all rows of those batches."""
    tags = {"dag_id": dag_id, "pack": str(pack)}
    stats.gauge(ACTIVE_ROWS, active, tags=tags)
    stats.gauge(DECODING_ROWS, decoding, tags=tags)


def step_starts(dag_id: str, step: str, try_number: int) -> None:
    """Every try but the first is a retry."""
    if try_number > 1:
        stats.incr(RETRIES, tags={"dag_id": dag_id, "step": step})


def run_finished(dag_id: str, result: Mapping[str, Any]) -> None:
    """What `staticjob finish` printed: counters by status, gauges of the last run."""
    if result["reused"]:
        return
    tags = {"dag_id": dag_id}
    ledger = result["ledger"]
    for status, rows in result["statuses"].items():
        stats.incr(ROWS, rows, tags={**tags, "status": status})
    stats.incr(SLOTS, ledger["slots"], tags=tags)
    stats.incr(USEFUL_TOKENS, ledger["useful"], tags=tags)
    stats.gauge(RUN_USEFUL_SHARE, result["useful_share"], tags=tags)
    stats.gauge(RUN_ACTIVE_SHARE, active_share(ledger), tags=tags)
    stats.gauge(RUN_SECONDS, result["seconds"], tags=tags)
    if result["cost"] is not None:
        stats.gauge(RUN_COST, result["cost"], tags=tags)


def active_share(ledger: Mapping[str, int]) -> float:
    """Slots of real rows that had not ended, over all slots of real rows; 1.0 where none was computed."""
    rows = ledger["slots"] - ledger["dummy"]
    return (rows - ledger["finished"]) / rows if rows else 1.0
