"""The run page in a real browser over a job of a thousand chunks: paging, hostile texts, an end to asking."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import airflow_home  # noqa: F401  (first: Airflow reads its settings at import)
import pytest
import uvicorn
from airflow.api_fastapi.core_api.security import get_user
from browser import CHROMIUM, DRIVER, MISSING, Browser
from fabricate import Fabricated, fabricate
from fastapi import FastAPI, Request
from staticjob_airflow.page import app as page
from staticjob_airflow.page import overview
from staticjob_airflow.page.document import RunInfo, Trend, TrendRun
from staticjob_airflow.page.rights import RunKey, readable_run
from staticjob_airflow.page.runs import Run
from test_page_data import progress
from test_units import AMOUNTS, COUNTS

from staticjob import storage
from staticjob.errors import InfrastructureError
from staticjob.generating.outcome import Curve, Outcome, VllmWork
from staticjob.ledger import Ledger
from staticjob.records.status import Status

CHUNKS = 1000
EVIL = "<img src=x onerror=alert(1)>"


@dataclass
class Served:
    """The app on a port of its own; the rights are the other tests' concern."""

    made: Fabricated
    url: str
    state: str
    asked: list[str]

    def find_run(self, key: RunKey) -> Run:
        self.asked.append(key.run_id)
        final = self.state == "success"
        info = RunInfo(
            dag_id=key.dag_id, run_id=key.run_id, state=self.state, started=None, ended=None, final=final
        )
        return Run(info, self.made.work.uri)


def _generates(made: Fabricated) -> None:
    """Commit the first chunk as one that generates."""
    commit = made.commit_chunk(0)
    texts = Outcome(
        samples=1,
        prompts=Ledger(),
        decode=Ledger(),
        curve=Curve(rows=8, slots=24, active=(8, 5, 2), handovers={3: 2}),
        vllm=VllmWork(tails=2),
        finish={"stop": 8},
        lengths={},
        decisions=(),
        static_rates=None,
        vllm_rates=None,
    )
    storage.put_json(made.work.commit(commit.chunk), commit.model_copy(update={"generation": texts}))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("job")
    made = fabricate(folder, (8 * CHUNKS,), rows_per_chunk=8, statuses=(Status.OK,), commit=False)
    _generates(made)
    progress(made, 1, "failed", reason=EVIL)
    inner = page.make_app()
    inner.dependency_overrides[readable_run] = _as_asked
    inner.dependency_overrides[get_user] = lambda: None
    outer = FastAPI()
    outer.mount("/staticjob", inner)
    server = uvicorn.Server(uvicorn.Config(outer, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    served = Served(made, f"http://127.0.0.1:{port}/staticjob/run?dag_id=d&run_id=", "running", [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "find_run", served.find_run)
        patch.setattr(page, "job_dags", list)
        patch.setattr(page, "readable_dags", lambda dags, user: dags)
        patch.setattr(page, "newest_runs", lambda dags: [_unprepared()])
        patch.setattr(overview, "prepared_before", lambda run: [served.find_run(RunKey("d", "before"))])
        yield served
    server.should_exit = True
    thread.join()


def _unprepared(dag_id: str = "d") -> Run:
    """The newest run of a job of the overview, which has one."""
    info = RunInfo(dag_id=dag_id, run_id="bad", state="failed", started=None, ended=None, final=True)
    return Run(info, None, prepare="failed", failure=EVIL)


def _as_asked(request: Request) -> RunKey:
    return RunKey(request.query_params["dag_id"], request.query_params["run_id"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not CHROMIUM or not DRIVER:
        pytest.skip(MISSING)
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def _open(served: Served, browser: Browser, run_id: str) -> None:
    browser.open(served.url + run_id)
    browser.until("return document.querySelector('#chunks td') !== null")


def _count(browser: Browser, selector: str) -> Any:
    return browser.script("return document.querySelectorAll(arguments[0]).length", selector)


def _text(browser: Browser, selector: str) -> Any:
    return browser.script("return document.querySelector(arguments[0]).innerText", selector)


def test_a_thousand_chunks_are_drawn_by_rung_and_listed_a_page_at_a_time(
    served: Served, browser: Browser
) -> None:
    _open(served, browser, "many")
    assert _count(browser, "#chunks tbody tr") == 50
    assert _count(browser, "#ladder rect") == 3
    assert _text(browser, "#chunk-page") == "1 of 20"
    browser.click("#chunk-on")
    assert _text(browser, "#chunk-page") == "2 of 20"
    browser.choose("#chunk-state", "failed")
    assert (_count(browser, "#chunks tbody tr"), _text(browser, "#chunk-page")) == (1, "1 of 1")
    assert browser.console() == []


def test_a_link_on_a_task_opens_the_page_with_that_tasks_chunks(served: Served, browser: Browser) -> None:
    _open(served, browser, "one&task=3")
    assert _count(browser, "#chunks tbody tr") == 1
    assert _text(browser, "#chunks td a") == "log [3]"


def test_markup_in_a_text_stays_text(served: Served, browser: Browser) -> None:
    _open(served, browser, EVIL)
    assert EVIL in _text(browser, "#trouble")
    assert EVIL in _text(browser, "#eyebrow")
    assert EVIL in _text(browser, "#chunks tbody")
    assert _count(browser, "img") == 0


def test_a_long_name_does_not_make_the_page_wider_than_its_window(served: Served, browser: Browser) -> None:
    _open(served, browser, "n" * 300)
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")


def test_a_chunk_that_generates_is_drawn_with_its_handover(served: Served, browser: Browser) -> None:
    _open(served, browser, "texts")
    assert _text(browser, "#curves figcaption") == (
        "8 × 64: 8 rows, half of them ended by step 2, 2 handed to vLLM"
    )
    assert (_count(browser, "#curves polyline"), _count(browser, "#curves line")) == (1, 1)


def test_the_page_spells_numbers_as_the_report_does(served: Served, browser: Browser) -> None:
    _open(served, browser, "units")
    spell = "return import('./static/units.js').then(units => arguments[1].map(units[arguments[0]]))"
    assert browser.script(spell, "count", list(COUNTS)) == list(COUNTS.values())
    assert browser.script(spell, "money", list(AMOUNTS)) == list(AMOUNTS.values())


def test_the_tiles_show_every_row_and_whose_second_a_speed_is_of(served: Served, browser: Browser) -> None:
    _open(served, browser, "tiles")
    tiles = _text(browser, "#tiles")
    assert re.search(r"[\d,]+ of 8,000\s+rows computed", tiles)
    assert "useful tokens per wall second" in tiles
    assert "by earlier runs" not in tiles
    storage.put(served.made.work.started, b'{"started": "2026-02-01T00:00:00+00:00"}')
    _open(served, browser, "tiles")
    browser.until(
        "return document.querySelector('#tiles').innerText.includes('a part of it by earlier runs')"
    )
    storage.delete([served.made.work.started])


def test_the_overview_says_why_the_newest_run_failed_beside_the_numbers_of_the_one_before(
    served: Served, browser: Browser
) -> None:
    browser.open(served.url.partition("run?")[0])
    browser.until("return document.querySelector('#jobs td') !== null")
    line = _text(browser, "#jobs tbody tr")
    assert "failed" in line
    assert "of 8,000" in line
    assert f"prepare failed: {EVIL} Numbers of the run of" in line
    assert (
        browser.script("return document.querySelector('#jobs td a').pathname")
        == "/dags/d/runs/bad/tasks/prepare"
    )
    assert _count(browser, "img") == 0


def test_the_overview_goes_on_asking_when_all_its_runs_are_over_for_the_next_night_begins(
    served: Served, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = TrendRun(
        finished="2026-01-31T04:00:00+00:00",
        output="o",
        fingerprint="f",
        shown=True,
        rows=1,
        useful_share=1.0,
        tokens_per_second=1.0,
        seconds=1.0,
        cost=None,
        changes=(),
    )
    before = [served.find_run(RunKey("d", "before"))]
    monkeypatch.setattr(overview, "trend_of", lambda status: Trend(runs=(past,)))
    monkeypatch.setattr(overview, "prepared_before", lambda run: before if run.info.dag_id == "d" else [])
    browser.open(served.url.partition("run?")[0])
    browser.until("return document.querySelector('#jobs svg') !== null")
    monkeypatch.setattr(page, "newest_runs", lambda dags: [_unprepared("a"), _unprepared("d")])
    browser.until("return document.querySelectorAll('#jobs tbody tr').length === 2")
    assert [_count(browser, f"#jobs tbody tr:nth-child({row}) svg") for row in (1, 2)] == [0, 1]


def test_every_picture_and_table_has_a_name_and_every_control_a_label(
    served: Served, browser: Browser
) -> None:
    _open(served, browser, "names")
    nameless = """
      const named = node => node.getAttribute('aria-label') || node.labels?.length || node.caption
        || document.getElementById(node.getAttribute('aria-labelledby'));
      const nodes = [...document.querySelectorAll('svg, select, section, table')];
      return nodes.filter(node => !named(node)).map(node => node.outerHTML.slice(0, 80));
    """
    assert browser.script(nameless) == []


def test_what_has_the_focus_keeps_it_while_the_page_is_brought_up_to_date(
    served: Served, browser: Browser
) -> None:
    _open(served, browser, "focus")
    browser.script("document.querySelector('#chunks td a').focus()")
    browser.script("getSelection().selectAllChildren(document.querySelector('#where dd:last-child'))")
    served.made.commit_chunk(2)
    browser.until("return document.querySelectorAll('#chunks .dot.done').length === 2")
    assert browser.script("return document.activeElement.innerText") == "log [0]"
    assert browser.script("return getSelection().toString()") == served.made.work.uri


def test_a_run_that_failed_by_its_row_errors_leads_to_the_report_of_them(
    served: Served, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = fabricate(tmp_path, statuses=(Status.OK, Status.ERROR))
    info = RunInfo(dag_id="d", run_id="errors", state="failed", started=None, ended=None, final=True)
    monkeypatch.setattr(page, "find_run", lambda key: Run(info, failed.work.uri, failed="finish"))
    _open(served, browser, "errors")
    assert "limits.max_error_rate allows 1.00%" in _text(browser, "#trouble")
    assert _text(browser, "#actions") == "Report Manifest"


def test_trouble_that_has_passed_is_not_shown_any_more(
    served: Served, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(key: RunKey) -> Run:
        raise InfrastructureError("the store is busy")

    _open(served, browser, "passing")
    with monkeypatch.context() as patch:
        patch.setattr(page, "find_run", fail)
        browser.until("return document.querySelector('#message').innerText.includes('the store is busy')")
    browser.until("return document.querySelector('#message').hidden")


def test_a_page_stops_asking_when_its_run_is_over(served: Served, browser: Browser) -> None:
    _open(served, browser, "ends")
    served.state = "success"
    browser.until("return document.querySelector('#state').innerText === 'success'")
    browser.until(
        "const names = performance.getEntriesByType('resource').map(entry => entry.name);"
        "return names.filter(name => name.includes('api/trend')).length === 2"
    )
    served.asked.clear()
    time.sleep(2.5)  # longer than the wait between two questions
    assert served.asked == []
