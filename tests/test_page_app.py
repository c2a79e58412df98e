"""The run page inside a real Airflow API server, with its database and its login: who sees what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import airflow_home  # noqa: F401  (first: Airflow reads its settings at import)
import pytest
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagTag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.serialized_dag import SerializedDagModel
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from airflow_runs import connection
from conftest import Bucket
from fabricate import Fabricated, fabricate
from fastapi.testclient import TestClient
from page_runs import RUN, add_later_run, add_run, add_task, publish, push, serialize
from staticjob_airflow import note
from staticjob_airflow.links import ReportLink, RunPageLink
from staticjob_airflow.stores import Stores

from staticjob import claim, storage
from staticjob.errors import ConfigError
from staticjob.sandbox.store import SeaweedStore

RUN_PAGES = ("run", "api/run", "api/trend", "report", "manifest")


@pytest.fixture(scope="module")
def server() -> Iterator[TestClient]:
    """The API server over a fresh database."""
    initdb()
    with create_session() as session:
        session.add(DagBundleModel(name="bundle"))
    with TestClient(create_app(apps="core"), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def made(server: TestClient, tmp_path_factory: pytest.TempPathFactory) -> Fabricated:
    """Finished, by a run of the DAG `made`; `other` has a run that prepared nothing; `foreign` is no job."""
    made = fabricate(tmp_path_factory.mktemp("job"))
    publish(made)
    add_run("made", work=made.work.uri)
    add_run("other", state="running")
    add_run("foreign", tag="else", work=made.work.uri)
    return made


@pytest.fixture
def apart(
    server: TestClient, s3: Bucket, s3_server: SeaweedStore, monkeypatch: pytest.MonkeyPatch
) -> Fabricated:
    """A job in the real store, which the API server's own credentials do not open, but a connection does."""
    apart = fabricate(s3.uri)
    publish(apart)
    monkeypatch.setenv("AIRFLOW_CONN_NIGHTLY", connection(s3_server.env()))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("STATICJOB_STORE_ATTEMPTS", "1")
    return apart


def _as(role: str | None) -> dict[str, str]:
    """Headers of a user who is logged in with this role."""
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="ann", role=role))
    return {"Authorization": f"Bearer {token}"}


def _query(dag_id: str) -> dict[str, str]:
    return {"dag_id": dag_id, "run_id": RUN}


def _paths(server: TestClient) -> list[str]:
    """Every route of the mounted app."""
    (mount,) = [route for route in server.app.routes if getattr(route, "path", "") == "/staticjob"]  # type: ignore[attr-defined]
    return [route.path.replace("{name}", "run.js") for route in mount.routes]


def test_no_route_answers_without_a_login(server: TestClient, made: Fabricated) -> None:
    paths = _paths(server)
    assert {"/", "/static/run.js", "/api/jobs", *(f"/{page}" for page in RUN_PAGES)} == set(paths)
    for path in paths:
        assert server.get(f"/staticjob{path}", params=_query("made")).status_code == 401, path
        bad = {"Authorization": "Bearer nonsense"}
        assert server.get(f"/staticjob{path}", params=_query("made"), headers=bad).status_code == 403, path


@pytest.mark.parametrize("page", RUN_PAGES)
def test_a_user_without_the_right_to_read_the_run_is_refused(
    server: TestClient, made: Fabricated, page: str
) -> None:
    answer = server.get(f"/staticjob/{page}", params=_query("made"), headers=_as(None))
    assert (answer.status_code, answer.json()) == (403, {"detail": "Forbidden"})


def test_rights_are_asked_for_the_runs_of_the_very_dag_that_is_shown(
    server: TestClient, made: Fabricated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_other(self: Any, *, method: str, access_entity: Any, details: Any, user: Any) -> bool:
        return (method, access_entity.value, details.id) == ("GET", "RUN", "other")

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", only_other)
    reader = _as("viewer")
    for page in RUN_PAGES:
        assert server.get(f"/staticjob/{page}", params=_query("made"), headers=reader).status_code == 403
        twice = [("dag_id", "other"), *_query("made").items()]
        assert server.get(f"/staticjob/{page}", params=twice, headers=reader).status_code == 403
    assert server.get("/staticjob/api/run", params=_query("other"), headers=reader).status_code == 200
    (line,) = server.get("/staticjob/api/jobs", headers=reader).json()["jobs"]
    assert line["run"]["dag_id"] == "other"


def test_a_reader_is_told_of_the_run_and_its_job(server: TestClient, made: Fabricated) -> None:
    answer = server.get("/staticjob/api/run", params=_query("made"), headers=_as("viewer")).json()
    assert (answer["run"]["run_id"], answer["run"]["state"], answer["run"]["final"]) == (RUN, "success", True)
    assert answer["job"]["totals"]["chunks"] == len(made.plan.chunks)
    assert answer["job"]["totals"]["rows_done"] == sum(chunk.rows for chunk in made.plan.chunks)


def test_a_run_that_has_prepared_nothing_says_so(server: TestClient, made: Fabricated) -> None:
    answer = server.get("/staticjob/api/run", params=_query("other"), headers=_as("viewer")).json()
    assert answer["job"] is None
    assert "prepare has not succeeded" in answer["notice"]["text"]
    assert not answer["run"]["final"]


def test_a_run_of_a_dag_that_is_no_job_is_not_shown(server: TestClient, made: Fabricated) -> None:
    for page in RUN_PAGES[1:]:
        answer = server.get(f"/staticjob/{page}", params=_query("foreign"), headers=_as("admin"))
        assert (answer.status_code, "foreign has no run" in answer.json()["detail"]) == (404, True)


def test_a_dag_of_somebody_elses_that_has_the_tag_spoils_no_other_line(
    server: TestClient, made: Fabricated
) -> None:
    dag = DAG("theirs", tags=["staticjob"], schedule=None)
    dag.add_task(EmptyOperator(task_id="consume"))
    add_run("theirs")
    SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), bundle_name="bundle")
    assert "Nothing is known" in _line(server, "theirs")["notice"]["text"]
    with create_session() as session:
        session.query(DagTag).filter_by(dag_id="theirs").delete()


def test_the_overview_lists_the_newest_run_of_every_job(server: TestClient, made: Fabricated) -> None:
    lines = server.get("/staticjob/api/jobs", headers=_as("viewer")).json()["jobs"]
    assert [(line["run"]["dag_id"], line["rows"] is None) for line in lines] == [
        ("made", False),
        ("other", True),
    ]


def test_pages_allow_no_inline_script_and_a_report_runs_nothing(server: TestClient, made: Fabricated) -> None:
    page = server.get("/staticjob/run", params=_query("made"), headers=_as("viewer"))
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "http" not in page.text.replace("<!doctype html>", "")  # nothing from elsewhere
    report = server.get("/staticjob/report", params=_query("made"), headers=_as("viewer"))
    assert report.text == "<h1>report</h1>"
    assert report.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    manifest = server.get("/staticjob/manifest", params=_query("made"), headers=_as("viewer"))
    assert manifest.json()["fingerprint"] == made.prepared.fingerprint
    assert manifest.headers["x-content-type-options"] == "nosniff"


def test_a_missing_report_is_said_to_be_missing(server: TestClient, made: Fabricated) -> None:
    storage.delete([made.output.manifest])
    answer = server.get("/staticjob/manifest", params=_query("made"), headers=_as("viewer"))
    assert answer.status_code == 404
    assert "_manifest.json" in answer.json()["detail"]


def test_a_run_whose_output_was_published_over_shows_no_other_runs_report(
    server: TestClient, tmp_path: Path
) -> None:
    first = fabricate(tmp_path)
    publish(first)
    second = fabricate(tmp_path, fingerprint="e" * 64, scale=2)
    publish(second)
    add_run("first", work=first.work.uri)
    add_run("second", work=second.work.uri)
    line = (
        "This output was published again by the run with fingerprint eeeeeeeeeeeeeeee, finished 2026-01-31; "
        "its report is not this run's."
    )
    for page in ("report", "manifest"):
        answer = server.get(f"/staticjob/{page}", params=_query("first"), headers=_as("viewer"))
        assert (answer.status_code, answer.json()) == (404, {"detail": line})
        assert server.get(f"/staticjob/{page}", params=_query("second"), headers=_as("viewer")).is_success
    shown = server.get("/staticjob/api/run", params=_query("first"), headers=_as("viewer")).json()
    assert (shown["notice"]["text"], shown["job"]["info"]["state"]) == (line, "overtaken")
    shown = server.get("/staticjob/api/run", params=_query("second"), headers=_as("viewer")).json()
    assert shown["notice"] is None
    claim.take(first.output.uri, first.prepared.fingerprint)
    answer = server.get("/staticjob/report", params=_query("first"), headers=_as("viewer"))
    assert answer.json()["detail"].startswith("This run has published nothing yet: what stands at")


def _line(server: TestClient, dag_id: str) -> Any:
    lines = server.get("/staticjob/api/jobs", headers=_as("viewer")).json()["jobs"]
    (line,) = [line for line in lines if line["run"]["dag_id"] == dag_id]
    return line


def _notice(server: TestClient, dag_id: str, run_id: str) -> Any:
    query = {"dag_id": dag_id, "run_id": run_id}
    return server.get("/staticjob/api/run", params=query, headers=_as("viewer")).json()["notice"]


def test_a_run_that_cannot_prepare_says_why_and_does_not_hide_the_numbers_of_the_run_before(
    server: TestClient, made: Fabricated
) -> None:
    add_run("nights", work=made.work.uri)
    before = _line(server, "nights")
    assert (before["facts_of"], before["notice"]) == (None, None)
    why = "staticjob prepare: limits.max_lenght: unknown key"
    add_later_run("nights", "bad", {"prepare": "failed"}, failure=why)
    line = _line(server, "nights")
    assert (line["run"]["run_id"], line["run"]["state"], line["facts_of"]["run_id"]) == ("bad", "failed", RUN)
    numbers = ("rows", "rows_done", "useful_share", "cost", "trend")
    assert [line[name] for name in numbers] == [before[name] for name in numbers]
    told = {"text": f"prepare failed: {why}", "log_of": "prepare"}
    assert line["notice"] == _notice(server, "nights", "bad") == told
    add_later_run("nights", "killed", {"prepare": "failed"})
    assert _notice(server, "nights", "killed")["log_of"] == "prepare"


def test_a_run_that_failed_after_prepare_says_at_which_task(server: TestClient, made: Fabricated) -> None:
    add_run("columns", state="failed", work=made.work.uri)
    with create_session() as session:
        run = session.query(DagRun).filter_by(dag_id="columns").one()
        for task, state in {"tokenize": "failed", "plan": "upstream_failed"}.items():
            add_task(session, run, task, state)
    told = {"text": "tokenize failed: its log says why, and what to do.", "log_of": "tokenize"}
    assert _line(server, "columns")["notice"] == _notice(server, "columns", RUN) == told


def test_a_run_that_was_skipped_for_its_missing_input_says_so(server: TestClient, made: Fabricated) -> None:
    add_run("gaps", work=made.work.uri)
    add_later_run("gaps", "none", {"prepare": "success", "finish": "skipped"}, missing_input="s3://b/in")
    line = _line(server, "gaps")
    assert line["notice"] == _notice(server, "gaps", "none")
    assert line["notice"]["text"].startswith("Input missing: skipped")
    assert line["rows"] is not None
    with create_session() as session:
        run = session.query(DagRun).filter_by(dag_id="gaps", run_id="none").one()
        note.on_dag_run_success(run, "")
        assert run.note == "staticjob: skipped, its input was missing; when the data has come, clear prepare"
    # A person who ends a run by hand has Airflow skip what had not begun.
    add_later_run("gaps", "ended", {"prepare": "success", "finish": "skipped"})
    assert "Input missing" not in _notice(server, "gaps", "ended")["text"]
    with create_session() as session:
        run = session.query(DagRun).filter_by(dag_id="gaps", run_id="ended").one()
        note.on_dag_run_success(run, "")
        assert run.note is None


def test_a_run_that_waits_for_a_pool_that_does_not_exist_says_which(
    server: TestClient, made: Fabricated
) -> None:
    add_run("pooled", state="running", work=made.work.uri)
    with create_session() as session:
        run = session.query(DagRun).filter_by(dag_id="pooled").one()
        add_task(session, run, "chunk", "scheduled", pool="gpuu")
        note.on_dag_run_running(run, "")
        assert run.note.startswith("staticjob: at its start, pool 'gpuu' does not exist")
    notice = _notice(server, "pooled", RUN)
    assert "pool 'gpuu' does not exist" in notice["text"]
    assert "airflow pools set gpuu" in notice["text"]
    assert _line(server, "pooled")["notice"] == notice
    with create_session() as session:
        session.add(Pool(pool="gpuu", slots=1, include_deferred=False))
    assert _notice(server, "pooled", RUN) is None


def test_a_job_is_read_by_the_connection_of_its_dag(server: TestClient, apart: Fabricated) -> None:
    add_run("apart", work=apart.work.uri)
    assert server.get("/staticjob/manifest", params=_query("apart"), headers=_as("viewer")).status_code == 502
    serialize("apart", apart, "nightly")
    pages = {
        page: server.get(f"/staticjob/{page}", params=_query("apart"), headers=_as("viewer"))
        for page in RUN_PAGES
    }
    assert {answer.status_code for answer in pages.values()} == {200}
    assert pages["api/run"].json()["job"]["totals"]["chunks"] == len(apart.plan.chunks)
    assert pages["report"].text == "<h1>report</h1>"
    assert pages["manifest"].json()["fingerprint"] == apart.prepared.fingerprint
    lines = server.get("/staticjob/api/jobs", headers=_as("viewer")).json()["jobs"]
    assert [line["rows_done"] for line in lines if line["run"]["dag_id"] == "apart"] == [
        sum(chunk.rows for chunk in apart.plan.chunks)
    ]


def test_a_connection_that_the_api_server_does_not_have_is_named(
    server: TestClient, apart: Fabricated
) -> None:
    add_run("lost", work=apart.work.uri)
    serialize("lost", apart, "nowhere")
    answer = server.get("/staticjob/api/run", params=_query("lost"), headers=_as("viewer")).json()
    assert answer["job"] is None
    assert "airflow.aws_conn_id nowhere, as seen from here" in answer["notice"]["text"]


def test_the_page_cannot_write_even_where_its_connection_may(apart: Fabricated, s3: Bucket) -> None:
    before, manifest = s3.keys(), s3.get("out/_manifest.json")
    with Stores().reading("nightly"):
        assert storage.read(apart.output.manifest) == manifest
        for write in (
            lambda: storage.put(apart.output.manifest, b"changed"),
            lambda: storage.put_if_absent(f"{s3.uri}/new", b"new"),
            lambda: storage.delete([apart.output.manifest]),
        ):
            with pytest.raises(ConfigError, match="only read"):
                write()
    assert (s3.keys(), s3.get("out/_manifest.json")) == (before, manifest)


def test_airflow_finds_the_tab_and_the_entry_in_the_navigation(server: TestClient) -> None:
    plugins = server.get("/api/v2/plugins", headers=_as("admin")).json()["plugins"]
    (plugin,) = [plugin for plugin in plugins if plugin["name"] == "staticjob"]
    views = {view["name"]: (view["destination"], view["url_route"]) for view in plugin["external_views"]}
    assert views == {
        "Static batch": ("dag_run", "static-batch"),
        "Static batch jobs": ("nav", "static-batch-jobs"),
    }


def test_a_run_that_succeeds_is_noted_and_a_persons_note_is_kept(server: TestClient) -> None:
    result = {
        "rows": 240,
        "statuses": {"ok": 238, "empty": 2},
        "useful_share": 0.923,
        "seconds": 58.1,
        "cost": 0.04,
        "reused": False,
    }
    add_run("noted")
    with create_session() as session:
        run = session.query(DagRun).filter_by(dag_id="noted").one()
        push(session, run, "finish", "return_value", result)
        note.on_dag_run_success(run, "")
        assert run.note == (
            "staticjob: 240 rows (238 ok, 2 empty), 92.3% useful, 58.1 s on the device, $0.04"
        )
        note.on_dag_run_running(run, "")  # cleared, it runs again
        assert run.note is None
        note.on_dag_run_success(run, "")
        session.flush()
        note.on_dag_run_failed(run, "")
        assert run.note is None
        run.note = "looked at by Ann"
        for ends in (note.on_dag_run_running, note.on_dag_run_failed, note.on_dag_run_success):
            ends(run, "")
        assert run.note == "looked at by Ann"
    assert note.summary({**result, "reused": True}).endswith("58.1 s on the device, $0.04 by an earlier run")


def test_links_lead_from_a_task_to_the_page_of_its_run_wherever_airflow_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = type("Key", (), {"dag_id": "a b", "run_id": RUN, "task_id": "chunk", "map_index": 3})()
    operator: Any = None
    run = "run_id=scheduled__2026-01-31T02%3A00%3A00%2B00%3A00"
    assert RunPageLink().get_link(operator, ti_key=key) == f"/staticjob/run?dag_id=a+b&{run}&task=3"
    assert ReportLink().get_link(operator, ti_key=key) == f"/staticjob/report?dag_id=a+b&{run}"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/nights/")
    assert ReportLink().get_link(operator, ti_key=key) == f"/nights/staticjob/report?dag_id=a+b&{run}"
