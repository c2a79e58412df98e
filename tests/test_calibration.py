"""Rates before the first run: measured as in a worker, whatever the planning process has imported."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tiny_encoders import job, save

from staticjob.engine.shape import Shape
from staticjob.errors import ConfigError, InfrastructureError
from staticjob.planning import calibration

SHAPES = [Shape(8, 2), Shape(16, 1)]


@pytest.fixture(autouse=True)
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has imported what an engine needs, as one that applies a chat template has."""
    monkeypatch.setattr("staticjob.planning.calibration.is_fresh", lambda: False)


def test_a_start_counts_its_imports_where_this_process_has_made_them_already(tmp_path: Path) -> None:
    model = save("bert", tmp_path)
    here = calibration.measure_here(job(), model, SHAPES)
    apart = calibration.calibrate(job(), model, SHAPES)
    assert [(rate.length, rate.batch) for rate in apart.shapes] == [(16, 1), (8, 2)]
    assert apart.ceilings is not None
    # Not a matter of speed: the one loads torch and transformers, the other a model of a few kilobytes.
    assert apart.start_seconds > here.start_seconds


def test_a_model_that_cannot_be_loaded_is_named_as_it_is_by_a_worker(tmp_path: Path) -> None:
    model = save("bert", tmp_path)
    (model / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="model"):
        calibration.calibrate(job(), model, SHAPES)


def killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staticjob.planning.calibration.measure_here", killed)
    with pytest.raises(InfrastructureError, match=r"was killed.*--no-calibrate"):
        calibration.calibrate(job(), tmp_path, SHAPES)
