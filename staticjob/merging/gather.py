"""Fill a merge group's spool: every result of its rows, fetched by the blocks that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from staticjob import storage
from staticjob.errors import DataError
from staticjob.layout import Work
from staticjob.merging.ahead import LOOKUPS_AHEAD, in_order
from staticjob.merging.places import Places
from staticjob.merging.spool import Coverage, Spool
from staticjob.records.commit import Block, Commit
from staticjob.records.plan import Chunk
from staticjob.records.prepared import Prepared
from staticjob.running import results

# One ranged request, and how many are under way at once: what fetching holds in memory.
REQUEST_BYTES = 16 * 2**20
REQUESTS_AHEAD = 4


def read_commits(work: Work, chunks: Sequence[Chunk]) -> dict[str, Commit]:
    """The commit of every chunk; DataError naming the first chunk that has none."""

    def one(chunk: Chunk) -> Commit:
        commit = storage.find_json(work.commit(chunk.id), Commit)
        if commit is None:
            raise DataError(
                f"chunk {chunk.id}: not finished; run `staticjob chunk {work.uri} --chunk {chunk.id}` first"
            )
        return commit

    return {commit.chunk: commit for commit in in_order(one, chunks, LOOKUPS_AHEAD)}


def touched(blocks: Sequence[Block], files: Sequence[int]) -> list[Sequence[Block]]:
    """Runs of neighbouring blocks that may hold rows of `files` (ascending), each one request.

    A block reaches to where the next one begins; of the last it is only known where it begins.
    """
    wanted = np.array(files)
    first = np.array([b.file for b in blocks])
    # A successor that begins with row 0 says that its file is not in this block.
    before = first[1:] - np.array([b.row == 0 for b in blocks[1:]], dtype=np.int64)
    last = np.maximum(first, np.append(before, np.iinfo(np.int64).max))
    hit = np.searchsorted(wanted, first) < np.searchsorted(wanted, last, side="right")
    runs: list[list[Block]] = []
    end = -1
    size = 0
    for i in np.flatnonzero(hit):
        block = blocks[i]
        if i == end and size + block.bytes <= REQUEST_BYTES:
            runs[-1].append(block)
            size += block.bytes
        else:
            runs.append([block])
            size = block.bytes
        end = int(i) + 1
    return list(runs)


def result_heads(work: Work, commits: Mapping[str, Commit]) -> list[pa.Field] | None:
    """The head columns as the first result object has them; None when no chunk has run."""
    commit = next((c for c in commits.values() if c.blocks), None)
    if commit is None:
        return None
    uri = work.chunk(commit.chunk, commit.result)
    head = results.read_result(uri, 0, commit.blocks[0].offset)
    try:
        # An Arrow file begins with 8 bytes of signature, then its schema.
        schema = pa.ipc.read_schema(pa.py_buffer(head[8:]))
    except (pa.ArrowInvalid, EOFError, OSError) as error:
        raise DataError(f"{uri}: damaged ({error}); delete the chunk's folder and run it again") from None
    return list(schema)[len(results.result_schema([])) :]


def fill(
    spool: Spool,
    places: Places,
    *,
    work: Work,
    prepared: Prepared,
    commits: Mapping[str, Commit],
    heads: Sequence[pa.Field],
) -> None:
    """Bring every result of the group's rows into the spool, in any order."""
    files = set(places.files)
    for split in prepared.splits:
        if files.intersection(piece.file for piece in split.slices):
            for batch in results.stream_ipc(work.answered(split.id)):
                _put(spool, places, batch)
    schema = results.result_schema(heads)
    requests = [
        (work.chunk(commit.chunk, commit.result), run)
        for commit in commits.values()
        if commit.blocks
        for run in touched(commit.blocks, places.files)
    ]
    for batches in in_order(lambda r: results.read_blocks(r[0], r[1], schema), requests, REQUESTS_AHEAD):
        for batch in batches:
            _put(spool, places, batch)


def _put(spool: Spool, places: Places, batch: pa.RecordBatch) -> None:
    inside, positions = places.positions(*(batch[name].to_numpy() for name in ("file", "row", "item")))
    if not len(positions):
        return
    if not inside.all():
        # A block is sorted by row, so a group of neighbouring files is one slice of it.
        first, last = np.flatnonzero(inside)[[0, -1]]
        batch = batch.slice(first, last + 1 - first)
        if len(positions) != batch.num_rows:
            batch = batch.filter(pa.array(inside[first : last + 1]))
    spool.put(positions, batch)


def check_coverage(coverage: Coverage, places: Places, prepared: Prepared, group: str) -> None:
    """Raise DataError naming the first rows that are missing or doubled."""
    if not coverage.missing and not coverage.doubled:
        return

    def rows(positions: Sequence[int]) -> str:
        named = (places.name(p) for p in positions)
        return ", ".join(f"{prepared.files[file].path} row {row}" for file, row in named)

    problems = []
    if coverage.missing:
        problems.append(f"{coverage.missing} rows missing ({rows(coverage.first_missing)})")
    if coverage.doubled:
        problems.append(f"{coverage.doubled} rows doubled ({rows(coverage.first_doubled)})")
    raise DataError(
        f"merge {group}: {' and '.join(problems)}; nothing of it is published. "
        "Delete the work prefix and run the job again"
    )
