"""Finish: an output counts only whole, of one run, within its error ceiling, and `_SUCCESS` comes last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fabricate import Fabricated, fabricate

from staticjob import storage
from staticjob.errors import DataError
from staticjob.merge import merge_group
from staticjob.planning import history
from staticjob.planning.rates import measured_rates
from staticjob.records.commit import Commit
from staticjob.records.output import Manifest, MergeCommit
from staticjob.records.status import Status


def test_success_is_written_last_after_manifest_report_and_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fabricate(tmp_path)
    made.merge()
    written: list[str] = []

    def watch(name: str) -> None:
        real = getattr(storage, name)

        def watched(uri: str, data: bytes) -> object:
            written.append(uri)
            return real(uri, data)

        monkeypatch.setattr(storage, name, watched)

    watch("put")
    watch("put_if_absent")
    manifest, before = made.finish()
    output = made.output
    history_uri = made.prepared.config.output.history_uri
    assert written == [output.manifest, output.report_json, output.report_html, history_uri, output.success]
    assert not before
    assert storage.read(made.output.success).decode() == made.prepared.fingerprint + "\n"
    assert storage.read_json(made.output.manifest, Manifest) == manifest


def test_the_manifest_accounts_for_every_row_slot_and_second(tmp_path: Path) -> None:
    made = fabricate(tmp_path)
    made.merge()
    manifest, _ = made.finish()
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
    made.merge()
    first, _ = made.finish()
    pins = storage.list_objects(made.output.uri)
    assert made.finish() == (first, True)
    assert storage.list_objects(made.output.uri) == pins


def test_an_unmerged_group_is_named_and_nothing_counts(tmp_path: Path) -> None:
    made = fabricate(tmp_path, groups=((0, 1), (2, 3)))
    merge_group(made.work, made.prepared, made.plan, made.group(0))
    with pytest.raises(DataError, match="group g00001: not merged; run `staticjob merge"):
        made.finish()
    assert storage.head(made.output.success) is None


def test_three_of_four_chunks_done_means_no_success_and_the_missing_one_is_named(tmp_path: Path) -> None:
    made = fabricate(tmp_path, rows=(24, 24), statuses=(Status.OK,), rows_per_chunk=12, commit=False)
    for i in (0, 1, 3):
        made.commit_chunk(i)
    with pytest.raises(DataError, match="chunk c002: not finished"):
        merge_group(made.work, made.prepared, made.plan, made.group())
    with pytest.raises(DataError, match="chunk c002: not finished"):
        made.finish()
    assert storage.head(made.output.success) is None
    made.commit_chunk(2)
    made.merge()
    made.finish()
    assert made.rows() == made.rows_expected()


def test_too_many_row_errors_leave_manifest_and_report_but_no_success(tmp_path: Path) -> None:
    made = fabricate(tmp_path, statuses=(Status.OK,) * 9 + (Status.ERROR,))
    made.merge()
    failed = sum(s is Status.ERROR for file in made.statuses for s in file)
    with pytest.raises(DataError, match=rf"{failed} of 137 rows have status error .* allows 1.00%") as caught:
        made.finish()
    assert caught.value.exit_code == 2
    assert storage.head(made.output.report_html)
    assert history.read(str(tmp_path / "history.json")) is None, "no forecast goes by a run that failed"
    assert storage.read_json(made.output.manifest, Manifest).statuses[Status.ERROR] == failed
    assert storage.head(made.output.success) is None


def test_a_ceiling_lowered_after_the_job_was_done_takes_success_back(tmp_path: Path) -> None:
    made = fabricate(tmp_path, statuses=(Status.OK,) * 9 + (Status.ERROR,), max_error_rate=0.5)
    made.merge()
    made.finish()
    limits = made.prepared.config.limits.model_copy(update={"max_error_rate": 0.01})
    config = made.prepared.config.model_copy(update={"limits": limits})
    stricter = replace(made, prepared=made.prepared.model_copy(update={"config": config}))
    with pytest.raises(DataError, match=r"allows 1\.00%"):
        stricter.finish()
    assert storage.head(made.output.success) is None
    assert made.finish()[1] is False
    assert storage.head(made.output.success) is not None


def test_row_errors_within_the_ceiling_do_not_stop_a_job(tmp_path: Path) -> None:
    made = fabricate(tmp_path, statuses=(Status.OK,) * 9 + (Status.ERROR,), max_error_rate=0.5)
    made.merge()
    made.finish()
    assert made.rows() == made.rows_expected()


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
    manifest, _ = made.finish()
    assert (manifest.rows, manifest.statuses, manifest.rates) == (0, {}, None)
    assert storage.head(made.output.success)


def test_a_commit_whose_ledger_is_not_the_plans_is_refused(tmp_path: Path) -> None:
    made = fabricate(tmp_path)
    made.merge()
    commit = storage.read_json(made.work.commit("c000"), Commit)
    ledger = commit.ledger.model_copy(
        update={"useful": commit.ledger.useful - 1, "padding": commit.ledger.padding + 1}
    )
    storage.put_json(made.work.commit("c000"), commit.model_copy(update={"ledger": ledger}))
    with pytest.raises(DataError, match="chunk c000: its commit has"):
        made.finish()


def test_a_merge_that_lost_rows_of_a_status_is_refused(tmp_path: Path) -> None:
    made = fabricate(tmp_path)
    made.merge()
    merged = storage.read_json(made.work.merge("g00000"), MergeCommit)
    statuses = merged.statuses | {Status.OK: merged.statuses[Status.OK] - 1}
    storage.put_json(made.work.merge("g00000"), merged.model_copy(update={"statuses": statuses}))
    with pytest.raises(DataError, match="statuses differ: published ok"):
        made.finish()
