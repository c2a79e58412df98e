"""The history keeps what earlier runs measured, for runs of the same model only."""

from __future__ import annotations

from pathlib import Path

from staticjob.generating.curve_history import Earlier
from staticjob.ledger import Ledger
from staticjob.planning import history
from staticjob.records.rates import Rates, ShapeRate

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


def test_lengths_that_a_run_did_not_run_keep_what_an_earlier_run_measured(tmp_path: Path) -> None:
    def rates(source: str, device: str = "cpu", **seconds: float) -> Rates:
        shapes = tuple(ShapeRate(length=int(k[1:]), batch=8, seconds=s) for k, s in seconds.items())
        return RATES.model_copy(update={"source": source, "shapes": shapes, "device": device})

    uri = str(tmp_path / "history.json")
    seen = []
    for made in (
        rates("run a", l512=8.0, l64=0.5),
        rates("run b", l64=0.7, l8=0.1),
        rates("run c", l8=0.2),
        rates("run d", "cuda", l8=0.01),
    ):
        history.append(uri, run(made.source), "model a", made, None)
        found = history.read(uri)
        assert found
        assert found.rates
        seen.append((found.rates.source, {shape.length: shape.seconds for shape in found.rates.shapes}))
    assert seen == [
        ("run a", {512: 8.0, 64: 0.5}),
        ("run b, 1 of them in earlier runs", {512: 8.0, 64: 0.7, 8: 0.1}),
        ("run c, 2 of them in earlier runs", {512: 8.0, 64: 0.7, 8: 0.2}),
        ("run d", {8: 0.01}),
    ]


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
