"""The history keeps what earlier runs measured, for runs of the same model only."""

from __future__ import annotations

from pathlib import Path

from staticjob.generating.curve_history import Earlier
from staticjob.ledger import Ledger
from staticjob.planning import history
from staticjob.records import Rates, ShapeRate

RATES = Rates(
    device="cpu",
    dtype="float32",
    shapes=(ShapeRate(length=64, batch=8, seconds=0.5),),
    start_seconds=3.0,
    rung_seconds=0.0,
    source="run x",
)
TEXTS = Earlier(cap=64, lengths={7: 100, 64: 3})


def run(output: str) -> history.Run:
    return history.Run(
        fingerprint="f" * 64, output=output, rows=0, ledger=Ledger(), seconds=0.0, cost=None, finished="then"
    )


def test_a_run_that_computed_nothing_keeps_what_the_same_model_measured(tmp_path: Path) -> None:
    uri = str(tmp_path / "history.json")
    history.append(uri, run("monday"), "model a", RATES, 2**30, TEXTS)
    history.append(uri, run("tuesday"), "model a", None, None)
    found = history.read(uri)
    assert found is not None
    assert (found.rates, found.generation, found.device_memory) == (RATES, TEXTS, 2**30)
    assert [r.output for r in found.runs] == ["monday", "tuesday"]


def test_what_another_model_measured_is_not_taken_for_the_new_ones(tmp_path: Path) -> None:
    uri = str(tmp_path / "history.json")
    history.append(uri, run("monday"), "model a", RATES, 2**30, TEXTS)
    history.append(uri, run("tuesday"), "model b", None, None)
    found = history.read(uri)
    assert found is not None
    assert (found.model_digest, found.rates, found.generation) == ("model b", None, None)
    assert history.earlier_texts(uri, "model b") == Earlier()


def test_a_day_without_rows_keeps_the_lengths_known_before_and_their_cap() -> None:
    assert Earlier.of(12, [], TEXTS) == TEXTS
