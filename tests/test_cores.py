"""The cores a process may compute on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staticjob.machine import cores as module
from staticjob.machine.cores import cores


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of eight cores; the file of its control group's quota, which is not there."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(module, "_QUOTA", quota)
    return quota


def test_every_core_the_scheduler_allows_is_used(eight: Path) -> None:
    assert cores() == 8
    eight.write_text("max 100000\n")
    assert cores() == 8


def test_a_containers_quota_counts(eight: Path) -> None:
    eight.write_text("250000 100000\n")
    assert cores() == 3
    eight.write_text("50000 100000\n")
    assert cores() == 1


def test_the_number_of_threads_that_the_environment_asks_for_counts(
    eight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert cores() == 2
