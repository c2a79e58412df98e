"""The routes of the page. Data, texts and pictures come from `data`, `trend` and `static/`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from staticjob import storage
from staticjob.errors import InfrastructureError, StaticJobError
from staticjob.layout import Output, sweep_html
from staticjob.planning import history
from staticjob_airflow.page.data import job_page
from staticjob_airflow.page.document import Notice, Overview, RunPage, Trend
from staticjob_airflow.page.facts import status_of, trend_of
from staticjob_airflow.page.overview import job_line
from staticjob_airflow.page.reasons import held_up, without_job
from staticjob_airflow.page.rights import LoggedIn, ReadableRun, RunKey, readable_dags
from staticjob_airflow.page.runs import Run, find_run, job_dags, newest_runs
from staticjob_airflow.page.snapshots import Snapshots
from staticjob_airflow.page.standing import of_another_run
from staticjob_airflow.page.trend import trend
from staticjob_airflow.stores import Stores

STATIC = {path.name: path for path in Path(__file__).with_name("static").iterdir()}
# The report's own look: the page is its live version.
STATIC["report.css"] = Path(history.__file__).parents[1] / "report" / "page.css"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".html": "text/html"}
READERS = 8

# No inline script or style, nothing from elsewhere, and only Airflow may frame it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
# A report was written by a worker: it is shown, but it runs nothing and reaches nothing.
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"


def make_app() -> FastAPI:
    """The app that the plugin mounts; a route that asks for no right still asks for a login."""
    app = FastAPI(title="staticjob", openapi_url=None)
    snapshots, stores = Snapshots(), Stores()

    @app.middleware("http")
    async def protect(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await answer(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Cache-Control"] = "no-store"
        return response

    @app.exception_handler(StaticJobError)
    def refuse(request: Request, error: StaticJobError) -> Response:
        passing = isinstance(error, InfrastructureError)
        return JSONResponse({"detail": str(error)}, status_code=502 if passing else 404)

    @app.get("/")
    def overview_page(user: LoggedIn) -> Response:
        return _static("overview.html")

    @app.get("/run")
    def run_page(key: ReadableRun) -> Response:
        return _static("run.html")

    @app.get("/static/{name}")
    def static(name: str, user: LoggedIn) -> Response:
        if name not in STATIC:
            raise HTTPException(404)
        return _static(name)

    @app.get("/api/jobs")
    def jobs(user: LoggedIn) -> Overview:
        runs = newest_runs(readable_dags(job_dags(), user))
        with ThreadPoolExecutor(READERS) as pool:
            return Overview(jobs=tuple(pool.map(lambda run: job_line(run, snapshots, stores), runs)))

    @app.get("/api/run")
    def run(key: ReadableRun) -> RunPage:
        found = _found(key)
        try:
            with stores.reading(found.aws_conn_id):
                status = status_of(found, snapshots)
                other = of_another_run(status) if status and found.info.final else ""
        except StaticJobError as error:
            return RunPage(run=found.info, notice=Notice(text=str(error)), job=None)
        if status is None:
            return RunPage(run=found.info, notice=held_up(found) or without_job(found), job=None)
        notice = Notice(text=other) if other else held_up(found)
        return RunPage(run=found.info, notice=notice, job=job_page(status))

    @app.get("/api/trend")
    def run_trend(key: ReadableRun) -> Trend:
        found = _found(key)
        with stores.reading(found.aws_conn_id):
            status = status_of(found, snapshots)
            return trend(None) if status is None else trend_of(status)

    @app.get("/report")
    def report(key: ReadableRun) -> Response:
        found = _found(key)
        with stores.reading(found.aws_conn_id):
            uri = sweep_html(found.sweep) if found.sweep else _published(found, snapshots).report_html
            data = storage.read(uri)
        return Response(data, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})

    @app.get("/manifest")
    def manifest(key: ReadableRun) -> Response:
        found = _found(key)
        with stores.reading(found.aws_conn_id):
            data = storage.read(_published(found, snapshots).manifest)
        return Response(data, media_type="application/json")

    return app


def _static(name: str) -> Response:
    path = STATIC[name]
    return Response(path.read_bytes(), media_type=TYPES[path.suffix])


def _found(key: RunKey) -> Run:
    run = find_run(key)
    if run is None:
        raise HTTPException(404, f"DAG {key.dag_id} has no run {key.run_id} of a staticjob job")
    return run


def _published(run: Run, snapshots: Snapshots) -> Output:
    """Where the run's report and manifest lie; 404 where those that lie there are another run's."""
    status = status_of(run, snapshots)
    if status is None:
        raise HTTPException(404, without_job(run).text)
    if other := of_another_run(status):
        raise HTTPException(404, other)
    return Output(status.prepared.config.output.uri)
