"""Metrics of runs: emitted by Airflow's own means, by job, and all that the dashboard shows."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow_home  # noqa: F401  (first: Airflow reads its settings at import)
import pytest
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory
from airflow_runs import connection, until
from conftest import Bucket
from fabricate import Fabricated, fabricate
from faults import serve
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from staticjob_airflow import metrics
from staticjob_airflow.chunk import ChunkOperator
from staticjob_airflow.live import THREAD, active_rows_sent
from test_page_data import progress

from staticjob import storage
from staticjob.config.job import JobConfig
from staticjob.sandbox.store import SeaweedStore

DASHBOARD = Path(__file__).parents[1] / "docker" / "grafana" / "staticjob.json"
FINISHED: dict[str, Any] = {
    "statuses": {"ok": 2, "empty": 1},
    "ledger": {"useful": 60, "padding": 10, "dummy": 20, "finished": 10, "slots": 100},
    "useful_share": 0.6,
    "seconds": 5.0,
    "cost": 0.25,
    "reused": False,
}


class Recorder:
    """A backend of Airflow's metrics that keeps what is sent: (kind, name, value, tags)."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, float, dict[str, str]]] = []

    def incr(self, stat: str, count: int = 1, *, tags: dict[str, str]) -> None:
        self.sent.append(("counter", stat, count, tags))

    def gauge(self, stat: str, value: float, *, tags: dict[str, str]) -> None:
        self.sent.append(("gauge", stat, value, tags))


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    backend = Recorder()
    stats.initialize(factory=lambda: backend, export_legacy_names=False)
    yield backend
    stats.initialize(factory=NoStatsLogger, export_legacy_names=False)


def test_a_finished_run_is_counted_by_job_and_status(recorder: Recorder) -> None:
    metrics.run_finished("nightly", FINISHED)
    assert all(tags["dag_id"] == "nightly" for *_, tags in recorder.sent)
    assert ("counter", "staticjob.rows", 2, {"dag_id": "nightly", "status": "ok"}) in recorder.sent
    values = {name: value for _, name, value, tags in recorder.sent if "status" not in tags}
    assert values == {
        "staticjob.slots": 100,
        "staticjob.useful_tokens": 60,
        "staticjob.run.useful_share": 0.6,
        "staticjob.run.active_share": 70 / 80,
        "staticjob.run.seconds": 5.0,
        "staticjob.run.cost": 0.25,
    }


def test_a_run_that_found_its_work_done_adds_nothing(recorder: Recorder) -> None:
    metrics.run_finished("nightly", FINISHED | {"reused": True})
    assert recorder.sent == []


@pytest.mark.parametrize(("try_number", "counted"), [(1, 0), (2, 1), (3, 1)])
def test_every_try_but_the_first_is_a_retry(recorder: Recorder, try_number: int, counted: int) -> None:
    chunk = ChunkOperator(task_id="chunk", work="w", pack={"index": 0})
    chunk.pre_execute({"ti": SimpleNamespace(try_number=try_number)})
    assert [name for _, name, *_ in recorder.sent] == ["staticjob.retries"] * counted


def test_every_metric_of_the_dashboard_is_emitted_and_the_other_way_round(recorder: Recorder) -> None:
    metrics.run_finished("nightly", FINISHED)
    metrics.step_starts("nightly", "chunk", 2)
    metrics.rows_active("nightly", 0, 3, 8)
    emitted = {f"airflow.{name}".replace(".", "_"): (kind, {*tags}) for kind, name, _, tags in recorder.sent}
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert {name for query in queries for name in re.findall(r"airflow_\w+", query)} == emitted.keys()
    for query in queries:
        (name,) = re.findall(r"airflow_\w+", query)
        kind, tags = emitted[name]
        assert not {"job", "instance"} & tags  # labels that Prometheus sets itself
        # OpenTelemetry's collector adds it to counters, the exporter of StatsD does not.
        assert (f'"{name}(_total)?"' in query) == (kind == "counter")
        labels = re.findall(r"(\w+)=~", query.replace("__name__=~", ""))
        grouped = re.findall(r"by \(([\w, ]+)\)", query)
        assert {*labels, *(label for each in grouped for label in each.split(", "))} <= tags
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) == variables
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def _writes_texts(made: Fabricated) -> Fabricated:
    """The planned job as one that generates."""
    settings = made.prepared.config.model_dump(mode="json", exclude={"embed"})
    settings |= {"task": "generate", "generate": {"max_new_tokens": 8}}
    settings["input"]["columns"] = {"prompt": "text"}
    config = JobConfig.model_validate(settings)
    storage.put_json(made.work.job, made.prepared.model_copy(update={"config": config}))
    return made


def test_a_pack_that_writes_texts_sends_its_active_rows_until_it_ends(
    recorder: Recorder, s3: Bucket, s3_server: SeaweedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _writes_texts(fabricate(s3.uri, commit=False))
    progress(made, 0, active_rows=3, decoding_rows=8)
    (pack,) = (i for i, pack in enumerate(made.plan.packs) if made.plan.chunks[0].id in pack)
    monkeypatch.setenv("AIRFLOW_CONN_NIGHTLY", connection(s3_server.env()))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")  # only the connection of the task opens the store

    def sent(active: int, decoding: int) -> bool:
        values = (("staticjob.active_rows", active), ("staticjob.decoding_rows", decoding))
        tags = {"dag_id": "nightly", "pack": str(pack)}
        return recorder.sent[-2:] == [("gauge", name, value, tags) for name, value in values]

    with active_rows_sent("nightly", made.work.uri, pack, "nightly", 0.02):
        until(lambda: sent(3, 8), "the active rows", pause=0.02)
    assert sent(0, 0)


def test_where_no_texts_are_written_the_looking_ends_and_nothing_is_sent(
    recorder: Recorder, tmp_path: Path
) -> None:
    made = fabricate(tmp_path, commit=False)
    progress(made, 0, active_rows=3, decoding_rows=8)
    with active_rows_sent("nightly", made.work.uri, 0, None, 0.02):
        until(lambda: THREAD not in {t.name for t in threading.enumerate()}, "the end", pause=0.02)
    assert recorder.sent == []


def test_metrics_arrive_where_airflows_statsd_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.getsockname()[1]))
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
        stats.initialize(factory=get_stats_factory(), export_legacy_names=False)
        metrics.step_starts("nightly", "chunk", 2)
        line = server.recv(1024).decode()
    stats.initialize(factory=NoStatsLogger, export_legacy_names=False)
    assert line == "airflow.staticjob.retries,dag_id=nightly,step=chunk:1|c"


SENDING = f"""
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory
from staticjob_airflow import metrics
stats.initialize(factory=get_stats_factory(), export_legacy_names=False)
metrics.run_finished("nightly", {FINISHED!r})
"""


def test_a_process_that_ends_at_once_has_sent_its_counts_as_deltas_over_opentelemetry() -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serve(Collector) as endpoint:
        variables = {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
        }
        subprocess.run([sys.executable, "-c", SENDING], env={**os.environ, **variables}, check=True)
    messages = ExportMetricsServiceRequest.FromString(b"".join(received))  # end to end, they are one
    found = {
        metric.name: metric
        for resource in messages.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    rows = found["airflow.staticjob.rows"].sum
    assert rows.is_monotonic
    assert rows.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    counts = [({a.key: a.value.string_value for a in p.attributes}, p.as_int) for p in rows.data_points]
    assert [count for count in counts if count[0]["status"] == "ok"] == [
        ({"dag_id": "nightly", "status": "ok"}, 2)
    ]
    (share,) = found["airflow.staticjob.run.useful_share"].gauge.data_points
    assert share.as_double == 0.6
