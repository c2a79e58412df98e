"""Two runs on one output: the newest one wins, and what stands there is all its own."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from fabricate import Fabricated, fabricate

from staticjob import claim, dataset, steps, storage
from staticjob.errors import DataError, InfrastructureError
from staticjob.merge import merge_group
from staticjob.records.status import Status

A, B = "a" * 64, "b" * 64
Runs = tuple[Fabricated, Fabricated]


def before(
    monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], None], module: str = "staticjob.finish"
) -> None:
    """Have `act` happen right before `step` of a module."""
    real = getattr(sys.modules[module], step)

    def delayed(*args: object) -> object:
        act()
        return real(*args)

    monkeypatch.setattr(f"{module}.{step}", delayed)


def claim_and_merge(run: Fabricated) -> None:
    """The run claims the output and writes its files there."""
    claim.take(run.output.uri, run.prepared.fingerprint)
    run.merge()


def publish(run: Fabricated) -> None:
    """The run claims the output and ends, undisturbed."""
    claim_and_merge(run)
    run.finish()


def finishes_first(winner: Fabricated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run claims the output and ends, undisturbed."""
    monkeypatch.undo()
    publish(winner)


def two_runs(tmp_path: Path, rows_b: tuple[int, ...] = (40, 0, 7, 90)) -> Runs:
    """Two jobs over one input and one output; the second has claimed it last."""
    groups = ((0,), (1, 2, 3))
    groups_b = ((0,), tuple(range(1, len(rows_b))))
    one = fabricate(tmp_path, fingerprint=A, groups=groups)
    two = fabricate(tmp_path, rows_b, fingerprint=B, groups=groups_b, scale=2.0)
    return one, two


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Two runs that write the same files."""
    return two_runs(tmp_path)


def test_of_two_runs_on_one_prefix_the_newest_wins_and_all_rows_are_its_own(runs: Runs) -> None:
    one, two = runs
    claim.take(one.output.uri, A)
    merge_group(one.work, one.prepared, one.plan, one.group(0))
    claim.take(two.output.uri, B)
    merge_group(two.work, two.prepared, two.plan, two.group(0))
    for refused in (
        lambda: merge_group(one.work, one.prepared, one.plan, one.group(1)),
        one.finish,
    ):
        with pytest.raises(
            DataError, match=f"run {'b' * 16} has claimed this output, so run {'a' * 16} stops"
        ):
            refused()
    two.merge()
    two.finish()
    assert two.rows() == two.rows_expected()


def test_a_run_that_loses_its_claim_while_it_writes_publishes_nothing(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = runs
    two.merge()
    two.finish()
    claim.take(one.output.uri, A)
    real = dataset.read_kept

    def overtaken(*args: object) -> object:
        claim.take(two.output.uri, B)
        return real(*args)

    monkeypatch.setattr(dataset, "read_kept", overtaken)
    with pytest.raises(DataError, match="has claimed this output"):
        merge_group(one.work, one.prepared, one.plan, one.group(0))
    assert two.rows() == two.rows_expected()
    assert storage.head(one.work.merge("g00000")) is None


def test_a_late_write_of_the_loser_keeps_success_away_until_the_merge_is_repaired(runs: Runs) -> None:
    one, two = runs
    claim_and_merge(one)
    late = storage.read(one.output.file("p3.parquet"))
    claim_and_merge(two)
    storage.put(one.output.file("p3.parquet"), late)
    with pytest.raises(DataError, match=r"p3.parquet: gone, or not the file that was merged"):
        two.finish()
    assert storage.head(two.output.success) is None
    two.merge()
    two.finish()
    assert two.rows() == two.rows_expected()


def test_going_back_to_an_earlier_run_replaces_the_other_runs_files_of_equal_size(runs: Runs) -> None:
    one, two = runs
    for made in (one, two, one):
        publish(made)
        assert made.rows() == made.rows_expected()


def test_success_of_another_run_is_gone_before_its_first_file_is_replaced(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = runs
    publish(one)
    claim.take(two.output.uri, B)
    seen = []
    real = storage.writer

    def watched(uri: str) -> object:
        if re.search(r"out/p\d\.parquet$", uri):
            seen.append(storage.head(two.output.success))
        return real(uri)

    monkeypatch.setattr(storage, "writer", watched)
    merge_group(two.work, two.prepared, two.plan, two.group(0))
    assert seen == [None]


def test_output_files_only_an_earlier_run_had_are_gone_before_success(tmp_path: Path) -> None:
    one, two = two_runs(tmp_path, rows_b=(40, 0, 7))
    publish(one)
    stranger = one.output.file("notes.txt")
    storage.put(stranger, b"mine")
    publish(two)
    assert storage.head(one.output.file("p3.parquet")) is None
    assert storage.read(stranger) == b"mine"
    assert two.rows() == two.rows_expected()


def test_a_run_overtaken_while_it_audits_leaves_the_winners_files_and_manifest_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = fabricate(tmp_path, fingerprint=A)
    two = fabricate(tmp_path, (40, 0, 7, 90, 5), fingerprint=B, groups=((4,), (0, 1, 2, 3)))
    claim_and_merge(one)

    def overtaken() -> None:
        claim.take(two.output.uri, B)
        merge_group(two.work, two.prepared, two.plan, two.group(0))

    before(monkeypatch, "audit", overtaken)
    with pytest.raises(DataError, match="has claimed this output"):
        one.finish()
    assert two.published(4).to_pylist() == two.expected_rows(4)
    assert storage.head(one.output.manifest) is storage.head(one.output.report_json) is None


def test_the_report_of_a_run_that_was_overtaken_is_not_written_over_the_winners(runs: Runs) -> None:
    one, two = runs
    claim_and_merge(one)
    claim.take(two.output.uri, B)
    with pytest.raises(DataError, match="has claimed this output"):
        steps.report(one.work, one.prepared, one.plan)
    assert storage.head(two.output.report_json) is storage.head(two.output.report_html) is None


def test_a_run_with_too_many_errors_leaves_the_success_of_the_run_that_overtook_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = fabricate(tmp_path, fingerprint=A, statuses=(Status.OK,) * 9 + (Status.ERROR,))
    two = fabricate(tmp_path, fingerprint=B, scale=2.0)
    claim_and_merge(one)

    before(monkeypatch, "check_error_rate", partial(finishes_first, two, monkeypatch))
    with pytest.raises(DataError, match="allows 1"):
        one.finish()
    assert claim.success_of(two.output) == B


def test_a_merge_overtaken_before_it_publishes_leaves_the_winners_success(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = runs
    claim.take(one.output.uri, A)

    winner = partial(finishes_first, two, monkeypatch)
    before(monkeypatch, "check_coverage", winner, module="staticjob.merge")
    with pytest.raises(DataError, match="has claimed this output"):
        merge_group(one.work, one.prepared, one.plan, one.group(0))
    assert claim.success_of(two.output) == B


def test_a_file_replaced_while_the_report_is_written_keeps_success_away(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = runs
    claim_and_merge(one)
    late = storage.read(one.output.file("p3.parquet"))
    claim_and_merge(two)
    before(monkeypatch, "check_error_rate", lambda: storage.put(two.output.file("p3.parquet"), late))
    with pytest.raises(DataError, match=r"p3.parquet: gone, or not the file that was merged"):
        two.finish()
    assert storage.head(two.output.success) is None


def test_a_success_of_an_overtaken_run_in_the_way_is_replaced_by_the_own_one(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, two = runs
    two.merge()
    before(monkeypatch, "check_error_rate", lambda: storage.put(two.output.success, f"{A}\n".encode()))
    two.finish()
    assert claim.success_of(two.output) == B


def test_a_success_written_just_too_late_is_taken_back(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = runs
    claim_and_merge(one)
    real = storage.put_if_absent

    def overtaken(uri: str, data: bytes) -> bool:
        if uri == one.output.success:
            claim.take(one.output.uri, B)
        return real(uri, data)

    monkeypatch.setattr(storage, "put_if_absent", overtaken)
    with pytest.raises(DataError, match="has claimed this output"):
        one.finish()
    assert storage.head(one.output.success) is None


def test_a_store_that_hides_a_claim_it_has_ends_the_run_instead_of_asking_for_ever(
    s3, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim.take(f"{s3.uri}/out", A)
    monkeypatch.setattr(claim, "holder", lambda output: None)
    with pytest.raises(InfrastructureError, match="does not list it"):
        claim.take(f"{s3.uri}/out", B)


def test_a_claim_is_taken_once_and_kept_by_the_same_run(s3) -> None:
    first = claim.take(f"{s3.uri}/out", A)
    assert claim.take(f"{s3.uri}/out", A) == first
    second = claim.take(f"{s3.uri}/out", B)
    assert second.number == first.number + 1
    with pytest.raises(DataError):
        first.check()
    second.check()
