"""What the run page is told: states, ladder, speed, money and trend, from a job's objects alone."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import airflow_home  # noqa: F401  (first: it puts the plugins folder on the path)
import pytest
from fabricate import Fabricated, fabricate
from staticjob_airflow.page.data import job_page
from staticjob_airflow.page.document import JobPage
from staticjob_airflow.page.pace import Stretch, pace
from staticjob_airflow.page.snapshots import Snapshots
from staticjob_airflow.page.trend import trend

from staticjob import storage
from staticjob.generating.outcome import Curve, Outcome, VllmWork
from staticjob.generating.policy import Decision
from staticjob.ledger import Ledger
from staticjob.planning.history import History, Run, settings_of
from staticjob.records.commit import Progress
from staticjob.status import SILENT_SECONDS, read_object, read_status


@pytest.fixture
def made(tmp_path: Path) -> Fabricated:
    """A planned job of at least six chunks, none computed."""
    made = fabricate(tmp_path, commit=False)
    assert len(made.plan.chunks) >= 6
    return made


def progress(made: Fabricated, index: int, state: str = "running", age: float = 0.0, **more: Any) -> None:
    """Write the progress of a chunk of which one batch is computed."""
    chunk = made.plan.chunks[index]
    record = {
        "chunk": chunk.id,
        "state": state,
        "worker": "host:1",
        "batches_done": 1,
        "batches_total": chunk.batches,
        "rows_done": chunk.batch,
        "ledger": Ledger(useful=300, padding=212, slots=512),
        "seconds": 2.0,
        "heartbeat": (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age)).isoformat(),
        **more,
    }
    storage.put_json(made.work.progress(chunk.id), Progress.model_validate(record))


def page(made: Fabricated) -> JobPage:
    return job_page(read_status(made.work.uri))


def test_before_the_plan_there_are_no_numbers_to_show(made: Fabricated) -> None:
    storage.delete([made.work.plan])
    shown = page(made)
    assert (shown.totals, shown.speed, shown.money, shown.chunks) == (None, None, None, ())
    assert shown.info.name == "made"


def test_every_chunk_is_done_running_failed_stopped_or_waiting(made: Fabricated) -> None:
    made.commit_chunk(0)
    progress(made, 1)
    progress(made, 2, "failed", reason="DeviceError: out of memory")
    progress(made, 3, "stopped", reason="Stopped: asked to")
    progress(made, 4, age=SILENT_SECONDS + 1)  # its process is gone
    shown = page(made)
    states = [chunk.state for chunk in shown.chunks]
    assert states[:6] == ["done", "running", "failed", "stopped", "waiting", "waiting"]
    assert shown.totals is not None
    assert shown.totals.states["waiting"] == len(states) - 4
    assert sum(shown.totals.states.values()) == shown.totals.chunks == len(states)
    assert shown.chunks[2].reason == "DeviceError: out of memory"
    assert "DeviceError: out of memory" in shown.trouble[0]


def test_a_chunk_that_decodes_says_how_many_of_its_rows_have_not_ended(made: Fabricated) -> None:
    progress(made, 0, active_rows=5, decoding_rows=1200)
    progress(made, 1, active_rows=5, decoding_rows=8, age=SILENT_SECONDS + 1)  # its process is gone
    progress(made, 2)
    assert [chunk.texts for chunk in page(made).chunks[:3]] == ["5 of 1,200 rows not ended", "", ""]


def test_the_rungs_add_up_to_the_totals(made: Fabricated) -> None:
    made.commit_chunk(0)
    progress(made, 1)
    shown = page(made)
    assert shown.totals is not None
    assert sum(r.slots_done + r.slots_running for r in shown.rungs) == shown.totals.slots_done
    assert sum(r.slots for r in shown.rungs) == shown.totals.slots == made.plan.ledger.slots
    assert shown.rungs[0].slots_done == made.plan.chunks[0].ledger.slots
    assert shown.rungs[0].slots_running == 512
    paid = made.plan.chunks[0].ledger + Ledger(useful=300, padding=212, slots=512)
    assert shown.totals.useful_share == pytest.approx(paid.useful_share)


def test_a_chunk_names_the_mapped_task_that_runs_its_pack(made: Fabricated) -> None:
    ids = [chunk.id for chunk in made.plan.chunks]
    packed = made.plan.model_copy(update={"packs": (tuple(ids[2:]), tuple(ids[:2]))})
    storage.put_json(made.work.plan, packed)
    assert [chunk.map_index for chunk in page(made).chunks] == [1, 1] + [0] * (len(ids) - 2)


def test_the_time_left_is_the_slots_still_to_pay_at_the_speed_of_now(made: Fabricated) -> None:
    progress(made, 1)
    shown = page(made)
    assert shown.speed is not None
    assert shown.speed.tokens_per_second == pytest.approx(150)
    assert shown.speed.seconds_left == pytest.approx((made.plan.ledger.slots - 512) / 256)
    progress(made, 1, "failed")
    failed = page(made)
    assert failed.speed is None or failed.speed.seconds_left is None


def test_batches_kept_from_an_earlier_try_count_as_paid_and_not_as_speed(made: Fabricated) -> None:
    progress(made, 1, batches_done=2, rows_done=16, kept_batches=1)
    shown = page(made)
    assert shown.totals is not None
    assert shown.totals.slots_done == 1024
    assert shown.speed is not None
    assert shown.speed.tokens_per_second == pytest.approx(75)
    assert shown.speed.rows_per_second == pytest.approx(4)


def test_chunks_of_an_earlier_run_say_nothing_of_this_runs_speed(made: Fabricated) -> None:
    made.commit_chunk(0)
    storage.put(made.work.started, b'{"started": "2026-02-01T00:00:00+00:00"}')
    shown = page(made)
    assert shown.totals is not None
    assert (shown.totals.reused, shown.speed) == (1, None)


def test_workers_add_up_and_idle_time_between_them_does_not_count() -> None:
    def ran(start: float, end: float) -> Stretch:
        return Stretch(start, end, slots=100, useful=50, rows=10)

    together = pace([ran(0, 10), ran(0, 10)])
    assert together is not None
    assert together.slots == 20
    apart = pace([ran(0, 10), ran(100, 110)])
    assert apart is not None
    assert (apart.slots, apart.useful, apart.rows) == (10, 5, 1)
    lately = pace([ran(0, 10), Stretch(100, 110, slots=300, useful=0, rows=0)], window=5)
    assert lately is not None
    assert (lately.slots, lately.rows) == (30, 0)
    assert pace([]) is None
    assert pace([Stretch(1, 1, 1, 1, 1)]) is None


def test_the_cost_is_the_device_seconds_of_finished_and_unfinished_chunks(made: Fabricated) -> None:
    made.commit_chunk(0)  # two seconds, and three to start the engine
    progress(made, 1)  # two seconds
    money = page(made).money
    assert money is not None
    assert money.seconds == 7
    assert money.cost == pytest.approx(7 / 3600 * 3.6)
    useful = made.plan.chunks[0].ledger.useful + 300
    assert money.per_million == pytest.approx(money.cost / useful * 1e6)


def test_ids_are_text_and_what_is_unknown_is_null_in_the_json(made: Fabricated) -> None:
    progress(made, 1)
    document = json.loads(page(made).model_dump_json())
    assert all(isinstance(chunk["id"], str) for chunk in document["chunks"])
    assert document["chunks"][0]["seconds"] is None
    assert document["memory"]["measured"] is None


def test_a_second_look_reads_only_what_has_changed(made: Fabricated, monkeypatch: pytest.MonkeyPatch) -> None:
    made.commit_chunk(0)
    progress(made, 1)
    read: list[str] = []

    def counted(source: Any, kind: Any) -> Any:
        read.append(source.uri.rpartition("/")[2])
        return read_object(source, kind)

    monkeypatch.setattr("staticjob_airflow.page.snapshots.read_object", counted)
    snapshots = Snapshots()
    first = snapshots.get(made.work.uri)
    assert sorted(read) == ["commit.json", "job.json", "plan.json", "progress.json"]
    assert snapshots.get(made.work.uri) is first
    read.clear()
    progress(made, 1, batches_done=2)
    assert snapshots.get(made.work.uri, latest=True).progress[0].batches_done == 2
    assert read == ["progress.json"]


def _run(made: Fabricated, finished: str, **config: Any) -> Run:
    limits = made.prepared.config.limits.model_copy(update=config)
    settings = settings_of(
        made.prepared.config.model_copy(update={"limits": limits}),
        model_digest="0" * 64,
        device="cpu",
        versions={"torch": "2"},
    )
    return Run(
        fingerprint=finished,
        output="s3://b/out",
        rows=10,
        ledger=Ledger(useful=80, padding=20, slots=100),
        seconds=4.0,
        cost=None,
        finished=finished,
        settings=settings,
    )


def test_the_trend_says_what_changed_since_the_run_before(made: Fabricated) -> None:
    runs = (
        _run(made, "2026-02-01T00:00:00+00:00"),
        _run(made, "2026-02-02T00:00:00+00:00", max_length=64),
        _run(made, "2026-02-03T00:00:00+00:00", max_length=64),
    )
    history = History(model_digest="0" * 64, rates=None, device_memory=None, runs=runs)
    shown = trend(history, (runs[1].fingerprint, runs[1].output)).runs
    assert [[c.model_dump() for c in run.changes] for run in shown] == [
        [],
        [{"key": "limits.max_length", "before": None, "after": "64"}],
        [],
    ]
    assert [run.shown for run in shown] == [False, True, False]
    assert (shown[0].useful_share, shown[0].tokens_per_second) == (0.8, 20)


def test_a_runs_settings_are_its_job_file_without_the_addresses_of_its_date(
    made: Fabricated,
) -> None:
    settings = _run(made, "2026-02-01T00:00:00+00:00").settings
    assert "input.uri" not in settings
    assert "output.uri" not in settings
    assert settings["input.keep"] == '["id"]'
    assert settings["cost.gpu_hour"] == "3.6"
    assert settings["version of torch"] == "2"


def test_a_chunk_that_generates_shows_its_active_rows_its_handovers_and_what_was_decided(
    made: Fabricated,
) -> None:
    commit = made.commit_chunk(0)
    decision = Decision(
        hand_over_at=3, rest_to_vllm=False, seconds=1, all_static=2, all_vllm=2, rows_to_come=0, cap=8
    )
    texts = Outcome(
        samples=1,
        prompts=Ledger(),
        decode=Ledger(),
        curve=Curve(rows=4, slots=12, active=(4, 3, 1), handovers={3: 1}),
        vllm=VllmWork(tails=1, generated=50),
        finish={"stop": 4},
        lengths={},
        decisions=(decision,),
        static_rates=None,
        vllm_rates=None,
    )
    storage.put_json(made.work.commit(commit.chunk), commit.model_copy(update={"generation": texts}))
    shown = page(made)
    (curve,) = shown.curves
    assert (curve.length, curve.rows, curve.half_step) == (64, 4, 2)
    assert curve.points == ((0, 1.0), (1, 0.75), (2, 0.25))
    assert curve.handovers == ((3, 1),)
    assert shown.chunks[0].texts == "hand over at step 3"
    assert shown.speed is not None
    assert shown.speed.tokens_per_second == pytest.approx((commit.ledger.useful + 50) / commit.seconds)
