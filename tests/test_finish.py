"""Finish: an output counts only whole, of one run, within its error ceiling, and `_SUCCESS` comes last."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from fabricate import Fabricated, fabricate

from staticjob import claim, dataset, steps, storage
from staticjob.errors import DataError, InfrastructureError
from staticjob.finish import finish
from staticjob.merge import merge_group
from staticjob.planning import history
from staticjob.planning.rates import measured_rates
from staticjob.records import Commit, Manifest, MergeCommit, Status

A, B = "a" * 64, "b" * 64


def merge_all(made: Fabricated) -> None:
    for group in made.plan.groups:
        merge_group(made.work, made.prepared, made.plan, group)


def finish_it(made: Fabricated) -> tuple[Manifest, bool]:
    return finish(made.work, made.prepared, made.plan)


def before(
    monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], None], module: str = "staticjob.finish"
) -> None:
    """Have `act` happen right before `step` of a module."""
    real = getattr(sys.modules[module], step)

    def delayed(*args: object) -> object:
        act()
        return real(*args)

    monkeypatch.setattr(f"{module}.{step}", delayed)


def finishes_first(winner: Fabricated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run claims the output and ends, undisturbed."""
    monkeypatch.undo()
    claim.take(winner.output.uri, B)
    merge_all(winner)
    finish_it(winner)


def rows_of(made: Fabricated) -> list[dict[str, object]]:
    return [row for file in range(len(made.prepared.files)) for row in made.published(file).to_pylist()]


def rows_expected(made: Fabricated) -> list[dict[str, object]]:
    return [row for file in range(len(made.prepared.files)) for row in made.expected_rows(file)]


def test_success_is_written_last_after_manifest_report_and_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fabricate(tmp_path)
    merge_all(made)
    written: list[str] = []

    def watch(name: str) -> None:
        real = getattr(storage, name)

        def watched(uri: str, data: bytes) -> object:
            written.append(uri)
            return real(uri, data)

        monkeypatch.setattr(storage, name, watched)

    watch("put")
    watch("put_if_absent")
    manifest, before = finish_it(made)
    output = made.output
    history_uri = made.prepared.config.output.history_uri
    assert written == [output.manifest, output.report_json, output.report_html, history_uri, output.success]
    assert not before
    assert storage.read(made.output.success).decode() == made.prepared.fingerprint + "\n"
    assert storage.read_json(made.output.manifest, Manifest) == manifest


def test_the_manifest_accounts_for_every_row_slot_and_second(tmp_path: Path) -> None:
    made = fabricate(tmp_path)
    merge_all(made)
    manifest, _ = finish_it(made)
    statuses = [s for file in made.statuses for s in file]
    assert manifest.rows == len(statuses)
    assert manifest.statuses == {s: statuses.count(s) for s in Status if s in statuses}
    assert manifest.ledger == made.plan.ledger
    assert manifest.engines == {"static": statuses.count(Status.OK) + statuses.count(Status.TRUNCATED)}
    assert [f.rows for f in manifest.files] == list(made.plan.file_rows)
    assert manifest.seconds == 2.0 * len(made.plan.chunks) + 3.0
    assert manifest.cost == pytest.approx(manifest.seconds / 1000)
    assert manifest.rates is not None
    assert [(r.length, r.batch, r.seconds) for r in manifest.rates.shapes] == [(64, 8, 0.5)]
    assert manifest.versions["torch"] == "2"


def test_rates_for_the_next_run_leave_out_kept_batches_and_the_warm_ups_of_a_start(tmp_path: Path) -> None:
    made = fabricate(tmp_path, rows=(32,), statuses=(Status.OK,), rows_per_chunk=16)
    first, second = (storage.read_json(made.work.commit(c), Commit) for c in ("c000", "c001"))
    second = second.model_copy(update={"kept_batches": 1, "compute_seconds": 0.8, "length": 32})
    rates = measured_rates(made.plan, [first, second], "run x")
    assert rates is not None
    assert [(r.length, r.batch, r.seconds) for r in rates.shapes] == [(64, 8, 0.5), (32, 8, 0.8)]
    assert rates.start_seconds == pytest.approx(3.0 - 2 * rates.rung_seconds)
    assert measured_rates(made.plan, [second.model_copy(update={"kept_batches": 2})], "run x") is None


def test_finishing_again_changes_nothing_and_says_so(tmp_path: Path) -> None:
    made = fabricate(tmp_path)
    merge_all(made)
    first, _ = finish_it(made)
    pins = storage.list_objects(made.output.uri)
    assert finish_it(made) == (first, True)
    assert storage.list_objects(made.output.uri) == pins


def test_an_unmerged_group_is_named_and_nothing_counts(tmp_path: Path) -> None:
    made = fabricate(tmp_path, groups=((0, 1), (2, 3)))
    merge_group(made.work, made.prepared, made.plan, made.group(0))
    with pytest.raises(DataError, match="group g00001: not merged; run `staticjob merge"):
        finish_it(made)
    assert storage.head(made.output.success) is None


def test_three_of_four_chunks_done_means_no_success_and_the_missing_one_is_named(tmp_path: Path) -> None:
    made = fabricate(tmp_path, rows=(24, 24), statuses=(Status.OK,), rows_per_chunk=12, commit=False)
    for i in (0, 1, 3):
        made.commit_chunk(i)
    with pytest.raises(DataError, match="chunk c002: not finished"):
        merge_group(made.work, made.prepared, made.plan, made.group())
    with pytest.raises(DataError, match="chunk c002: not finished"):
        finish_it(made)
    assert storage.head(made.output.success) is None
    made.commit_chunk(2)
    merge_all(made)
    finish_it(made)
    assert rows_of(made) == rows_expected(made)


def test_too_many_row_errors_leave_manifest_and_report_but_no_success(tmp_path: Path) -> None:
    made = fabricate(tmp_path, statuses=(Status.OK,) * 9 + (Status.ERROR,))
    merge_all(made)
    failed = sum(s is Status.ERROR for file in made.statuses for s in file)
    with pytest.raises(DataError, match=rf"{failed} of 137 rows have status error .* allows 1.00%") as caught:
        finish_it(made)
    assert caught.value.exit_code == 2
    assert storage.head(made.output.report_html)
    assert history.read(str(tmp_path / "history.json")) is None, "no forecast goes by a run that failed"
    assert storage.read_json(made.output.manifest, Manifest).statuses[Status.ERROR] == failed
    assert storage.head(made.output.success) is None


def test_a_ceiling_lowered_after_the_job_was_done_takes_success_back(tmp_path: Path) -> None:
    made = fabricate(tmp_path, statuses=(Status.OK,) * 9 + (Status.ERROR,), max_error_rate=0.5)
    merge_all(made)
    finish_it(made)
    limits = made.prepared.config.limits.model_copy(update={"max_error_rate": 0.01})
    config = made.prepared.config.model_copy(update={"limits": limits})
    stricter = replace(made, prepared=made.prepared.model_copy(update={"config": config}))
    with pytest.raises(DataError, match=r"allows 1\.00%"):
        finish_it(stricter)
    assert storage.head(made.output.success) is None
    assert finish_it(made)[1] is False
    assert storage.head(made.output.success) is not None


def test_row_errors_within_the_ceiling_do_not_stop_a_job(tmp_path: Path) -> None:
    made = fabricate(tmp_path, statuses=(Status.OK,) * 9 + (Status.ERROR,), max_error_rate=0.5)
    merge_all(made)
    finish_it(made)
    assert rows_of(made) == rows_expected(made)


def test_a_job_without_rows_finishes_with_a_manifest_of_zero_rows(tmp_path: Path) -> None:
    made = fabricate(tmp_path, rows=(0,), groups=())
    made = Fabricated(
        made.work,
        made.prepared.model_copy(update={"files": ()}),
        made.plan.model_copy(update={"groups": (), "file_rows": ()}),
        [],
        [],
        1.0,
    )
    manifest, _ = finish_it(made)
    assert (manifest.rows, manifest.statuses, manifest.rates) == (0, {}, None)
    assert storage.head(made.output.success)


def test_a_commit_whose_ledger_is_not_the_plans_is_refused(tmp_path: Path) -> None:
    made = fabricate(tmp_path)
    merge_all(made)
    commit = storage.read_json(made.work.commit("c000"), Commit)
    ledger = commit.ledger.model_copy(
        update={"useful": commit.ledger.useful - 1, "padding": commit.ledger.padding + 1}
    )
    storage.put_json(made.work.commit("c000"), commit.model_copy(update={"ledger": ledger}))
    with pytest.raises(DataError, match="chunk c000: its commit has"):
        finish_it(made)


def test_a_merge_that_lost_rows_of_a_status_is_refused(tmp_path: Path) -> None:
    made = fabricate(tmp_path)
    merge_all(made)
    merged = storage.read_json(made.work.merge("g00000"), MergeCommit)
    statuses = merged.statuses | {Status.OK: merged.statuses[Status.OK] - 1}
    storage.put_json(made.work.merge("g00000"), merged.model_copy(update={"statuses": statuses}))
    with pytest.raises(DataError, match="statuses differ: published ok"):
        finish_it(made)


def two_runs(tmp_path: Path, rows_b: tuple[int, ...] = (40, 0, 7, 90)) -> tuple[Fabricated, Fabricated]:
    """Two jobs over one input and one output; the second has claimed it last."""
    groups = ((0,), (1, 2, 3))
    groups_b = ((0,), tuple(range(1, len(rows_b))))
    one = fabricate(tmp_path, fingerprint=A, groups=groups)
    two = fabricate(tmp_path, rows_b, fingerprint=B, groups=groups_b, scale=2.0)
    return one, two


def test_of_two_runs_on_one_prefix_the_newest_wins_and_all_rows_are_its_own(tmp_path: Path) -> None:
    one, two = two_runs(tmp_path)
    claim.take(one.output.uri, A)
    merge_group(one.work, one.prepared, one.plan, one.group(0))
    claim.take(two.output.uri, B)
    merge_group(two.work, two.prepared, two.plan, two.group(0))
    for refused in (
        lambda: merge_group(one.work, one.prepared, one.plan, one.group(1)),
        lambda: finish_it(one),
    ):
        with pytest.raises(
            DataError, match=f"run {'b' * 16} has claimed this output, so run {'a' * 16} stops"
        ):
            refused()
    merge_all(two)
    finish_it(two)
    assert rows_of(two) == rows_expected(two)


def test_a_run_that_loses_its_claim_while_it_writes_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = two_runs(tmp_path)
    merge_all(two)
    finish_it(two)
    claim.take(one.output.uri, A)
    real = dataset.read_kept

    def overtaken(*args: object) -> object:
        claim.take(two.output.uri, B)
        return real(*args)

    monkeypatch.setattr(dataset, "read_kept", overtaken)
    with pytest.raises(DataError, match="has claimed this output"):
        merge_group(one.work, one.prepared, one.plan, one.group(0))
    assert rows_of(two) == rows_expected(two)
    assert storage.head(one.work.merge("g00000")) is None


def test_a_late_write_of_the_loser_keeps_success_away_until_the_merge_is_repaired(tmp_path: Path) -> None:
    one, two = two_runs(tmp_path)
    claim.take(one.output.uri, A)
    merge_all(one)
    late = storage.read(one.output.file("p3.parquet"))
    claim.take(two.output.uri, B)
    merge_all(two)
    storage.put(one.output.file("p3.parquet"), late)
    with pytest.raises(DataError, match=r"p3.parquet: gone, or not the file that was merged"):
        finish_it(two)
    assert storage.head(two.output.success) is None
    merge_all(two)
    finish_it(two)
    assert rows_of(two) == rows_expected(two)


def test_going_back_to_an_earlier_run_replaces_the_other_runs_files_of_equal_size(tmp_path: Path) -> None:
    one, two = two_runs(tmp_path)
    for made in (one, two, one):
        claim.take(made.output.uri, made.prepared.fingerprint)
        merge_all(made)
        finish_it(made)
        assert rows_of(made) == rows_expected(made)


def test_success_of_another_run_is_gone_before_its_first_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = two_runs(tmp_path)
    claim.take(one.output.uri, A)
    merge_all(one)
    finish_it(one)
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
    claim.take(one.output.uri, A)
    merge_all(one)
    finish_it(one)
    stranger = one.output.file("notes.txt")
    storage.put(stranger, b"mine")
    claim.take(two.output.uri, B)
    merge_all(two)
    finish_it(two)
    assert storage.head(one.output.file("p3.parquet")) is None
    assert storage.read(stranger) == b"mine"
    assert rows_of(two) == rows_expected(two)


def test_a_run_overtaken_while_it_audits_leaves_the_winners_files_and_manifest_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = fabricate(tmp_path, fingerprint=A)
    two = fabricate(tmp_path, (40, 0, 7, 90, 5), fingerprint=B, groups=((4,), (0, 1, 2, 3)))
    claim.take(one.output.uri, A)
    merge_all(one)

    def overtaken() -> None:
        claim.take(two.output.uri, B)
        merge_group(two.work, two.prepared, two.plan, two.group(0))

    before(monkeypatch, "audit", overtaken)
    with pytest.raises(DataError, match="has claimed this output"):
        finish_it(one)
    assert two.published(4).to_pylist() == two.expected_rows(4)
    assert storage.head(one.output.manifest) is storage.head(one.output.report_json) is None


def test_the_report_of_a_run_that_was_overtaken_is_not_written_over_the_winners(tmp_path: Path) -> None:
    one, two = two_runs(tmp_path)
    claim.take(one.output.uri, A)
    merge_all(one)
    claim.take(two.output.uri, B)
    with pytest.raises(DataError, match="has claimed this output"):
        steps.report(one.work, one.prepared, one.plan)
    assert storage.head(two.output.report_json) is storage.head(two.output.report_html) is None


def test_a_run_with_too_many_errors_leaves_the_success_of_the_run_that_overtook_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = fabricate(tmp_path, fingerprint=A, statuses=(Status.OK,) * 9 + (Status.ERROR,))
    two = fabricate(tmp_path, fingerprint=B, scale=2.0)
    claim.take(one.output.uri, A)
    merge_all(one)

    before(monkeypatch, "check_error_rate", partial(finishes_first, two, monkeypatch))
    with pytest.raises(DataError, match="allows 1"):
        finish_it(one)
    assert claim.success_of(two.output) == B


def test_a_merge_overtaken_before_it_publishes_leaves_the_winners_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = two_runs(tmp_path)
    claim.take(one.output.uri, A)

    winner = partial(finishes_first, two, monkeypatch)
    before(monkeypatch, "check_coverage", winner, module="staticjob.merge")
    with pytest.raises(DataError, match="has claimed this output"):
        merge_group(one.work, one.prepared, one.plan, one.group(0))
    assert claim.success_of(two.output) == B


def test_a_file_replaced_while_the_report_is_written_keeps_success_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = two_runs(tmp_path)
    claim.take(one.output.uri, A)
    merge_all(one)
    late = storage.read(one.output.file("p3.parquet"))
    claim.take(two.output.uri, B)
    merge_all(two)
    before(monkeypatch, "check_error_rate", lambda: storage.put(two.output.file("p3.parquet"), late))
    with pytest.raises(DataError, match=r"p3.parquet: gone, or not the file that was merged"):
        finish_it(two)
    assert storage.head(two.output.success) is None


def test_a_success_of_an_overtaken_run_in_the_way_is_replaced_by_the_own_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, two = two_runs(tmp_path)
    merge_all(two)
    before(monkeypatch, "check_error_rate", lambda: storage.put(two.output.success, f"{A}\n".encode()))
    finish_it(two)
    assert claim.success_of(two.output) == B


def test_a_success_written_just_too_late_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = two_runs(tmp_path)
    claim.take(one.output.uri, A)
    merge_all(one)
    real = storage.put_if_absent

    def overtaken(uri: str, data: bytes) -> bool:
        if uri == one.output.success:
            claim.take(one.output.uri, B)
        return real(uri, data)

    monkeypatch.setattr(storage, "put_if_absent", overtaken)
    with pytest.raises(DataError, match="has claimed this output"):
        finish_it(one)
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
