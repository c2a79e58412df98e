"""The report: its numbers follow from plan and commits, and its page shows them safely and alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest
from planning import MODEL_CONFIG, RATES, job, planned, prepared, split
from rich.console import Console

from staticjob.engine.flops import forward_flops
from staticjob.ledger import Ledger
from staticjob.records.commit import Commit
from staticjob.records.plan import Chunk, Plan
from staticjob.records.rates import Ceilings
from staticjob.records.status import RowError, Status
from staticjob.records.tokens import SplitStats
from staticjob.report.build import build
from staticjob.report.data import Report
from staticjob.report.html import render_html
from staticjob.terminal.show import show_plan

CEILINGS = Ceilings(flops=4e11, bytes_per_second=1e10)
CONFIG = job(name="docs", cost={"gpu_hour": 3.6}, batching={"token_budget": 1024})
SPLITS = [split(0, [[1 + i % 90 for i in range(400)]]), split(1, [[200] * 7])]


def commit(chunk: Chunk, *, seconds: float = 1.0, kept: int = 0, start: float = 0.0) -> Commit:
    """A commit of a chunk whose engine time was `seconds` in all."""
    return Commit(
        chunk=chunk.id,
        result="result.arrow",
        size=1,
        rows=chunk.rows,
        blocks=(),
        statuses={Status.OK: chunk.rows},
        ledger=chunk.ledger,
        length=chunk.length,
        batch=chunk.batch,
        batches=chunk.batches,
        kept_batches=kept,
        seconds=seconds + 0.5,
        compute_seconds=seconds,
        start_seconds=start,
        peak_bytes=1_000_000,
        device="cpu",
        dtype="float32",
        worker="host:1",
        versions={"torch": "2.13"},
        finished="2026-01-01T00:00:00+00:00",
    )


def report(plan: Plan, commits: Sequence[Commit], splits: Sequence[SplitStats] = SPLITS) -> Report:
    return build(
        prepared(CONFIG, splits),
        plan,
        commits,
        model_config=MODEL_CONFIG,
        command="staticjob run jobs/docs.yaml",
        generated="2026-01-01 00:00 UTC",
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(SPLITS, CONFIG, rates=RATES.model_copy(update={"ceilings": CEILINGS}))


def test_a_finished_runs_ledger_is_the_sum_of_its_rungs_and_of_what_was_paid(plan: Plan) -> None:
    made = report(plan, [commit(chunk) for chunk in plan.chunks])
    assert made.state == "done"
    assert made.paid == made.ledger == plan.ledger == sum((r.ledger for r in made.rungs), Ledger())
    assert made.statuses == {"ok": 407}
    assert made.rows_pending == 0


def test_time_and_cost_are_those_of_the_commits(plan: Plan) -> None:
    made = report(plan, [commit(chunk, seconds=2.0, start=3.0) for chunk in plan.chunks])
    n = len(plan.chunks)
    assert (made.time.compute, made.time.start, made.time.other) == (2.0 * n, 3.0 * n, pytest.approx(0.5 * n))
    assert made.time.measured == pytest.approx(5.5 * n)
    assert made.cost.measured == pytest.approx(5.5 * n / 1000)
    assert made.cost.measured_per_million == pytest.approx(5.5 * n / 1000 / plan.ledger.useful * 1e6)
    assert made.useful_tokens_per_second == pytest.approx(plan.ledger.useful / (5.5 * n))


def test_the_speed_of_a_shape_is_its_work_over_its_time_split_into_useful_and_padding(plan: Plan) -> None:
    made = report(plan, [commit(chunk, seconds=0.1 * chunk.batches) for chunk in plan.chunks])
    for rung in made.rungs:
        assert rung.seconds_per_batch == pytest.approx(0.1)
        assert rung.flops == pytest.approx(forward_flops(MODEL_CONFIG, rung.length, rung.batch) / 0.1)
        assert rung.useful_flops == pytest.approx(rung.flops * rung.ledger.useful / rung.ledger.slots)
        assert rung.seconds == pytest.approx(0.1 * rung.batches)


def test_a_shape_faster_than_the_ceiling_fills_its_bar_and_the_page_says_why() -> None:
    def html(ceiling: float) -> str:
        most = CEILINGS.model_copy(update={"flops": ceiling, "bytes_per_second": 1e15})
        plan = planned(SPLITS, CONFIG, rates=RATES.model_copy(update={"ceilings": most}))
        made = report(plan, [commit(chunk, seconds=0.1 * chunk.batches) for chunk in plan.chunks])
        return render_html(made)

    def widest(page: str) -> float:
        bars = re.findall(r'aria-label="FLOP/s of rung.*?</svg>', page, re.DOTALL)
        return max(sum(float(width) for width in re.findall(r' width="([\d.]+)"', bar)) for bar in bars)

    busy, idle = html(1.0), html(1e15)
    assert widest(busy) == pytest.approx(1000, abs=0.1)
    assert widest(idle) < 1000
    assert "above the measured ceiling: that was measured while the machine was busy" in busy
    assert "above the measured ceiling" not in idle


def test_batches_kept_from_an_earlier_try_do_not_make_a_shape_look_faster() -> None:
    plan = planned([split(0, [[8] * 512])], job(batching={"token_budget": 64, "ladder": [8]}))
    made = report(plan, [commit(chunk, seconds=0.1 * (chunk.batches - 4), kept=4) for chunk in plan.chunks])
    assert made.rungs[0].seconds_per_batch == pytest.approx(0.1)
    assert made.time.kept_batches == 4 * len(plan.chunks)
    assert "kept from earlier tries" in render_html(made)


def test_an_unfinished_run_says_what_is_done_and_what_waits(plan: Plan) -> None:
    done = plan.chunks[:2]
    made = report(plan, [commit(chunk) for chunk in done])
    assert made.state == "unfinished"
    assert (made.chunks_done, made.chunks) == (2, len(plan.chunks))
    assert made.rows_pending == 407 - sum(chunk.rows for chunk in done)
    assert "not measured yet" in render_html(made)


@pytest.mark.parametrize("splits", [[], [split(0, [[]])]])
def test_a_job_without_rows_has_a_report(splits: list[SplitStats]) -> None:
    made = report(planned(splits, CONFIG), [], splits)
    assert made.state == "done"
    assert made.useful_share == 1.0
    assert "0 rows" in render_html(made)


class Page(HTMLParser):
    """Collects visible text and what a page would load, and checks that tags are closed in order."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("title", "style"):
            self.text += data


def test_the_page_is_well_formed_and_loads_nothing(plan: Plan) -> None:
    html = render_html(report(plan, [commit(chunk) for chunk in plan.chunks]))
    page = Page(html)
    assert page.open == []
    assert page.loads == []
    assert "script" not in page.tags
    assert "svg" in page.tags
    assert "url(" not in html
    assert "@import" not in html


def test_text_of_the_data_is_escaped() -> None:
    nasty = '<script>alert("x")</script>'
    error = RowError(file=f"{nasty}.csv", row=9007199254740993, status=Status.ERROR, reason=nasty)
    splits = [SPLITS[0].model_copy(update={"first_errors": (error,)})]
    html = render_html(report(planned(splits, CONFIG), [], splits))
    page = Page(html)
    assert nasty not in html
    assert "script" not in page.tags
    assert page.text.count(nasty) == 2
    assert "9007199254740993" in page.text


def test_the_page_names_everything_needed_to_run_the_job_again(plan: Plan) -> None:
    text = Page(render_html(report(plan, [commit(chunk) for chunk in plan.chunks]))).text
    for needed in ("f" * 64, "staticjob run jobs/docs.yaml", "torch 2.13", "token_budget: 1024", "host:1"):
        assert needed in text


def test_the_page_shows_the_three_orders_beside_what_was_paid(plan: Plan) -> None:
    made = report(plan, [commit(chunk) for chunk in plan.chunks])
    html = render_html(made)
    section = html[html.index("The same rows in other orders") : html.index("Predicted and measured")]
    numbers = [int(number.replace(",", "")) for number in re.findall(r">([\d,]+)</td>", section)]
    assert numbers == [made.orders.arrival, made.orders.sorted, made.orders.ladder, made.paid.slots]


def test_the_stored_report_reads_back_equal(plan: Plan) -> None:
    made = report(plan, [commit(chunk) for chunk in plan.chunks])
    assert Report.model_validate_json(made.model_dump_json()) == made


def test_the_terminal_shows_ladder_orders_memory_and_forecast(plan: Plan) -> None:
    console = Console(width=120)
    with console.capture() as capture:
        show_plan(plan, console)
    text = capture.get()
    for rung in plan.rungs:
        assert re.search(rf"^ ?{rung.length} +{rung.batch} +{rung.rows} ", text, re.MULTILINE)
    for number in (plan.orders.arrival, plan.orders.sorted, plan.orders.ladder):
        assert f"{number:,}" in text
    assert "22,713,216 parameters × 4 B" in text
    assert "device time" in text


def test_the_terminal_shows_an_empty_plan() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        show_plan(planned([]), console)
    assert "0 rows in 0 files: none" in capture.get()
