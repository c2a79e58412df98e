"""The run page and the trigger form in a browser, within Airflow's own pages."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlencode

import airflow_home  # noqa: F401  (first: Airflow reads its settings at import)
from airflow_runs import Run, until
from browser import Browser
from small_jobs import MINILM
from staticjob_airflow.adhoc import job_from_form

from end_to_end.jobs import BUCKET, DATE, ROWS, start
from staticjob import storage
from staticjob.config.job import LimitsConfig
from staticjob.config.job_file import validate_job
from staticjob.config.options import GenerateConfig
from staticjob.records.output import Manifest
from staticjob.records.status import Status
from staticjob.sandbox.airflow import AirflowSandbox

ON_SCREEN = "return (document.querySelector(arguments[0])?.getClientRects().length ?? 0) > 0"
HOLDS = "return document.querySelector(arguments[0]).value.replace(',', '') === arguments[1]"
DRAWN = "return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
BACKSPACE = "\ue003"


def test_a_number_of_the_form_that_is_left_empty_is_the_jobs_own_and_one_that_is_typed_counts(
    airflow: AirflowSandbox, browser: Browser
) -> None:
    def fill(section: str, **typed: str) -> None:
        browser.click(f"button[id$=':trigger:{section}']")
        for key, text in typed.items():
            field = f"[name='element_{key.replace('__', '.')}']"
            browser.until(ON_SCREEN, field)
            type_into(field, text, text)

    def type_into(field: str, keys: str, value: str) -> None:
        browser.type(field, keys)
        browser.until(HOLDS, field, value)
        # The form takes over a value as it draws; one that is typed before that would be lost.
        browser.until(DRAWN)

    browser.open(f"{airflow.url}/dags/staticjob_adhoc")
    browser.until(ON_SCREEN, "[data-testid='trigger-dag-button']")
    browser.click("[data-testid='trigger-dag-button']")
    browser.until(ON_SCREEN, "button[id$=':trigger:Job']")
    fill("Job", name="by-hand")
    fill("Model", model__path=MINILM)
    fill("Input", input__uri=f"{BUCKET}/in/{DATE}")
    fill("Output", output__uri=f"{BUCKET}/by-hand")
    fill("Generate", generate__max_new_tokens="2048", generate__temperature="0.75")
    type_into("[name='element_generate.n']", "3", "3")
    type_into("[name='element_generate.n']", BACKSPACE, "")
    browser.click("[data-testid='trigger-dag-submit']")
    browser.until("return location.pathname.includes('/runs/')")
    run_id = unquote(browser.script("return location.pathname").partition("/runs/")[2])
    conf = airflow.api().get(f"/dags/staticjob_adhoc/dagRuns/{run_id}")["conf"]
    # The one section that nothing was typed into is an editor's: JSON.
    made = job_from_form({**conf, "task": "generate", "input.columns": {"prompt": "text"}})
    job = validate_job(made, "the form")
    assert job.generate is not None
    assert job.generate.model_dump() == GenerateConfig(max_new_tokens=2048, temperature=0.75).model_dump()
    assert job.limits == LimitsConfig()


def _page(airflow: AirflowSandbox, run: Run, page: str = "run") -> str:
    return f"{airflow.url}/staticjob/{page}?{urlencode({'dag_id': run.dag_id, 'run_id': run.run_id})}"


TILES = r"return [...document.querySelectorAll('#tiles div')].map(tile => tile.innerText.replace('\n', ' '))"
CELLS = """
const rows = document.querySelectorAll(arguments[0] + ' tbody tr');
return [...rows].map(row => [...row.cells].map(cell => cell.innerText));
"""


def test_the_page_of_a_finished_run_shows_its_numbers_in_light_and_dark_and_the_console_is_silent(
    airflow: AirflowSandbox, runs: dict[str, Run], browser: Browser
) -> None:
    run = runs["undisturbed"]
    run.succeeds()
    manifest = storage.read_json(run.output.manifest, Manifest)
    seen = {}
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        browser.open(_page(airflow, run))
        browser.until("return document.querySelectorAll('#trends figure').length === 4")
        tiles = browser.script(TILES)
        assert tiles[:2] == ["100.0% of the slots done", f"{ROWS} of {ROWS} rows computed"]
        assert f"{manifest.ledger.useful_share:.1%} useful so far" in tiles[5]
        assert tiles[6].startswith("$")
        (rung,) = browser.script(CELLS, "#rungs")
        assert (rung[0], rung[2], rung[4]) == ("2 × 32", "100.0%", "1")
        assert [row[2] for row in browser.script(CELLS, "#chunks")] == ["done"]
        assert [["ok", str(manifest.statuses[Status.OK])]] == browser.script(CELLS, "#statuses")[:1]
        seen[scheme] = browser.screenshot()
    assert browser.console() == []
    light, dark = (browser.colours_of(seen[scheme]) for scheme in ("light", "dark"))
    assert min(len(light), len(dark)) > 20  # text and pictures, no empty page
    assert 0xF7F8FA in light - dark
    assert 0x0F141A in dark - light


def test_the_tab_of_a_run_leads_out_of_its_frame_to_the_log_of_a_chunk_and_to_the_report(
    airflow: AirflowSandbox, runs: dict[str, Run], browser: Browser
) -> None:
    run = runs["undisturbed"]
    run.succeeds()
    inside = f"{airflow.url}/dags/{run.dag_id}/runs/{quote(run.run_id)}"
    browser.open(f"{inside}/plugin/static-batch")
    browser.until("return document.querySelector('iframe') !== null")
    browser.into_frame("iframe")
    browser.until("return document.querySelector('#chunks td a') !== null")
    browser.click("#report")
    with browser.new_window():
        browser.until("return document.querySelector('h1')?.innerText === 'undisturbed done'")
    browser.into_frame("iframe")
    browser.click("#chunks td a")
    browser.out_of_frame()
    until(
        lambda: browser.script("return location.pathname").endswith("/tasks/chunk/mapped/0"), "the log's page"
    )
    browser.until("return document.body.innerText.includes('staticjob chunk')")
    known = "An iframe which has both allow-scripts and allow-same-origin"  # Airflow's own frame
    assert [line for line in browser.console() if known not in line] == []


def test_a_page_that_is_open_follows_a_run_to_its_end(
    airflow: AirflowSandbox, runs: dict[str, Run], browser: Browser
) -> None:
    runs["undisturbed"].succeeds()
    run = start(airflow.api(), "undisturbed", {"date": DATE})
    browser.open(_page(airflow, run))
    browser.until("return ['queued', 'running'].includes(document.querySelector('#state').innerText)")
    run.succeeds()
    browser.until("return document.querySelector('#state').innerText === 'success'")
    assert browser.script(TILES)[0] == "100.0% of the slots done"
    lead = browser.script("return document.querySelector('#lead').innerText")
    assert "1 of them kept from an earlier run" in lead
    assert run.api.get(run.path)["note"].startswith(f"staticjob: {ROWS} rows (")


def test_the_page_is_closed_to_whoever_is_not_logged_in(
    airflow: AirflowSandbox, runs: dict[str, Run], browser: Browser
) -> None:
    browser.open(f"{airflow.url}/auth/login")
    browser.forget_cookies()
    for page in ("run", "api/run", "report"):
        browser.open(_page(airflow, runs["undisturbed"], page))
        assert browser.script("return document.body.innerText") == '{"detail":"Not authenticated"}'
