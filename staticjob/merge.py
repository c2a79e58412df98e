"""Merge one group of output files: the input's rows in the input's order, each exactly once.

Results are brought into row order in a local spool (`spool.py`), counted there, and streamed
out beside the kept columns, which are read again from the pinned input. Memory is bounded by
one output row group; the spool takes the group's results once in temporary disk space.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from staticjob import claim, dataset, storage
from staticjob.errors import DataError
from staticjob.layout import Output, Work
from staticjob.merging.ahead import LOOKUPS_AHEAD, in_order
from staticjob.merging.gather import check_coverage, fill, read_commits, result_heads
from staticjob.merging.listed import SCORE, ListRows, list_fields, read_counts
from staticjob.merging.places import Places
from staticjob.merging.publish import (
    ROW_GROUP_BYTES,
    ParquetLayout,
    SpoolRows,
    Tally,
    changed,
    output_schema,
    write_file,
)
from staticjob.merging.ranks import RANK, rank_rows
from staticjob.merging.scratch import scratch_folder
from staticjob.merging.spool import Spool
from staticjob.records.commit import Commit
from staticjob.records.output import MergeCommit, OutputFile
from staticjob.records.plan import MergeGroup, Plan
from staticjob.records.prepared import InputFile, Prepared
from staticjob.tasks.task_module import task_module

log = logging.getLogger(__name__)

# Output files written at once where they are small, so that requests do not wait for each other.
WRITERS = 8
BATCH_ROWS = 8192
# Bytes in memory per byte of an input object, about: compressed text expands.
DECODED = 4


def merge_group(
    work: Work,
    prepared: Prepared,
    plan: Plan,
    group: MergeGroup,
    commits: Callable[[], Mapping[str, Commit]] | None = None,
) -> tuple[MergeCommit, bool]:
    """Publish the group's output files, or keep them where they lie as published; says whether they were.

    commits: the commits of all chunks, for who merges several groups and reads them once.
    Raises DataError when a chunk is unfinished, a row is missing or doubled, the input changed
    or another run claimed the output; InfrastructureError when the temporary disk is too small,
    ConfigError when there is none.
    """
    started = time.perf_counter()
    output = Output(prepared.config.output.uri)
    held = claim.hold(output.uri, prepared.fingerprint)
    merged = standing(work, prepared, group)
    if merged is not None:
        log.info("merge %s: %d files kept from an earlier run", group.id, len(merged.files))
        return merged, True
    chunks = commits() if commits else read_commits(work, plan.chunks)
    computed = result_heads(work, chunks)
    heads = _planned_heads(prepared) if computed is None else _output_heads(prepared, computed)
    kept_schema = dataset.decode_schema(plan.kept_schema)
    schema = output_schema(kept_schema, heads)
    lists = prepared.config.lists
    places = Places.of(group, plan, read_counts(work, prepared, group.files) if lists else None)
    spooled = [SCORE] if lists else heads
    with Spool(places.size, spooled, scratch_folder()) as spool:
        fill(spool, places, work=work, prepared=prepared, commits=chunks, heads=computed or spooled)
        check_coverage(spool.seal(), places, prepared, group.id)
        claim.end_other_success(held)
        layout = ParquetLayout.of(schema, heads, prepared.config.output.compression)
        files, total = _Publication(prepared, held, places, spool, layout, kept_schema).all()
    # Only now is it certain that the versions just recorded are this run's own.
    held.check()
    merged = MergeCommit(
        group=group.id,
        files=files,
        statuses=total.by_status(),
        items=dict(total.items),
        engines=dict(total.engines),
        n_tokens=total.n_tokens,
        seconds=time.perf_counter() - started,
    )
    return _commit(work, prepared, group, merged), False


@dataclass(frozen=True)
class _Publication:
    """Everything an output file of the group is written from."""

    prepared: Prepared
    held: claim.Claim
    places: Places
    spool: Spool
    layout: ParquetLayout
    kept_schema: pa.Schema

    def all(self) -> tuple[tuple[OutputFile, ...], Tally]:
        """Publish every file of the group, in order."""
        files = []
        total = Tally()
        for published, tally in in_order(self.one, range(len(self.places.files)), self.writers()):
            files.append(published)
            total += tally
        return tuple(files), total

    def one(self, index: int) -> tuple[OutputFile, Tally]:
        """Publish the group's file number `index`; returns it as it then lies in the store."""
        file = self.prepared.files[self.places.files[index]]
        before, stop = self.places.rows[index], self.places.rows[index + 1]
        first, count = self.places.starts[index], stop - before
        uri = self.held.output.file(file.output)
        rows: SpoolRows | ListRows = SpoolRows(self.spool, first)
        if self.places.counts is not None:
            rows = ListRows(self.spool, first, self.places.counts[before:stop])
        self._rank(file, first, first + count)
        tally = write_file(
            uri,
            file,
            self._kept(file),
            rows=rows,
            count=count,
            layout=self.layout,
            before_publish=self.held.check,
        )
        if isinstance(rows, ListRows):
            tally.items = rows.statuses
        found = storage.head(uri)
        if found is None:
            raise DataError(f"{uri}: gone right after it was written; is another job using this output?")
        published = OutputFile(
            index=file.index, path=file.output, rows=count, size=found.size, version=found.version
        )
        return published, tally

    def _rank(self, file: InputFile, start: int, stop: int) -> None:
        """Rank the file's rows within their groups, where the job asks for it."""
        group = self.prepared.config.rerank.group_by
        if group is None or start == stop:
            return
        schema = pa.schema([self.kept_schema.field(group)])
        groups = pa.concat_tables(dataset.read_kept(file, [group], schema))[group]
        if len(groups) != stop - start:
            raise changed(file, stop - start, str(len(groups)))
        scores, answered = self.spool.numbers("score", start, stop)
        self.spool.fill(RANK.name, start, rank_rows(groups, scores, answered))

    def _kept(self, file: InputFile) -> Iterator[pa.Table] | None:
        if not self.kept_schema.names:
            return None
        batch_rows = max(1, min(BATCH_ROWS, ROW_GROUP_BYTES // 4 // self.spool.row_bytes))
        return dataset.read_kept(file, self.prepared.config.input.keep, self.kept_schema, batch_rows)

    def writers(self) -> int:
        """Files written at once: as many of the largest as fit one row group, inputs decoded."""
        starts = self.places.starts
        largest = max((b - a for a, b in pairwise(starts)), default=0) * self.spool.row_bytes
        if self.kept_schema.names:
            largest += DECODED * max(self.prepared.files[f].object.size for f in self.places.files)
        return max(1, min(WRITERS, ROW_GROUP_BYTES // max(1, largest)))


def standing(work: Work, prepared: Prepared, group: MergeGroup) -> MergeCommit | None:
    """The group's commit if all its files still lie as it says; None when it must be merged (again)."""
    merged = storage.find_json(work.merge(group.id), MergeCommit)
    return None if merged is None or displaced(prepared, [merged]) else merged


def displaced(prepared: Prepared, merges: Sequence[MergeCommit]) -> tuple[str, ...]:
    """URIs of merged output files that are gone or hold something else by now."""
    output = Output(prepared.config.output.uri)
    files = [file for merged in merges for file in merged.files]
    found = in_order(lambda file: storage.head(output.file(file.path)), files, LOOKUPS_AHEAD)
    return tuple(
        output.file(file.path)
        for file, pin in zip(files, found, strict=True)
        if pin is None or (pin.size, pin.version) != (file.size, file.version)
    )


def _commit(work: Work, prepared: Prepared, group: MergeGroup, merged: MergeCommit) -> MergeCommit:
    """Write the marker last. A marker that is there stays if its files do, else it is outdated."""
    if storage.put_json_if_absent(work.merge(group.id), merged):
        return merged
    other = standing(work, prepared, group)
    if other is None:
        storage.put_json(work.merge(group.id), merged)
    return other or merged


def _output_heads(prepared: Prepared, computed: Sequence[pa.Field]) -> list[pa.Field]:
    """With the columns that no chunk can compute: they depend on the results of other chunks."""
    if prepared.config.lists:
        return list_fields(*computed)
    return [*computed, RANK] if prepared.config.rerank.group_by else list(computed)


def _planned_heads(prepared: Prepared) -> list[pa.Field]:
    """The head columns from the model's files: the schema of an output without any result."""
    # Deferred: a merge with results needs no model.
    from staticjob.models import model_files

    config = prepared.config
    return task_module(config.task).fields(config, model_files.resolve(config.model))
