"""Chunks into mapped tasks, and output files into merge tasks, under the scheduler's limits.

A process loads the model once and then runs its chunks in turn, so a pack should last much longer
than the engine takes to start. A merge task reads many small results and writes few large files,
so small files share one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from staticjob.records.plan import Chunk, MergeGroup
from staticjob.records.prepared import InputFile

# A pack should compute for at least this many engine starts.
STARTS_PER_PACK = 10
# A job that is over in minutes still gets a few tasks, which can run side by side and be retried alone,
# as long as each computes for this many starts.
SMALL_JOB_PACKS = 4
STARTS_PER_SMALL_PACK = 4
GROUP_ROWS = 262_144
GROUP_RESULT_BYTES = 512 * 2**20
# Opening, reading and publishing one file costs about as much as merging this many rows.
FILE_WEIGHT = 1_024


def pack_chunks(
    chunks: Sequence[Chunk],
    seconds: Callable[[Chunk], float],
    *,
    start_seconds: float,
    max_packs: int,
) -> tuple[tuple[str, ...], ...]:
    """Consecutive chunks as packs of about equal `seconds`, at most `max_packs`.

    Consecutive keeps a pack to few rungs, each of which it must warm up.
    """
    if not chunks:
        return ()
    ends = list(accumulate(seconds(chunk) for chunk in chunks))
    starts = ends[-1] / max(start_seconds, 1e-9)
    wanted = max(starts / STARTS_PER_PACK, min(SMALL_JOB_PACKS, 1 + starts / STARTS_PER_SMALL_PACK))
    count = min(int(wanted), max_packs, len(chunks))
    packs: list[list[str]] = [[] for _ in range(count)]
    for chunk, end, begin in zip(chunks, ends, [0.0, *ends], strict=False):
        middle = (begin + end) / 2 / ends[-1]
        packs[min(count - 1, int(middle * count))].append(chunk.id)
    return tuple(tuple(pack) for pack in packs if pack)


def group_files(
    files: Sequence[InputFile], file_items: Sequence[int], *, result_row_bytes: int, max_groups: int
) -> tuple[MergeGroup, ...]:
    """Output files in input order, packed until a group holds enough results by number or bytes.

    `file_items`: results of every file, of rows that are lists those of their elements.
    """
    capacity = min(GROUP_ROWS, GROUP_RESULT_BYTES // max(1, result_row_bytes))
    groups = _fill_groups(file_items, capacity)
    while len(groups) > max_groups:
        capacity *= 2
        groups = _fill_groups(file_items, capacity)
    return tuple(
        MergeGroup(
            id=f"g{number:05d}",
            files=tuple(files[i].index for i in group),
            items=sum(file_items[i] for i in group),
        )
        for number, group in enumerate(groups)
    )


def _fill_groups(file_rows: Sequence[int], capacity: int) -> list[list[int]]:
    groups: list[list[int]] = []
    room = 0
    for index, rows in enumerate(file_rows):
        weight = rows + FILE_WEIGHT
        if weight > room or not groups:
            groups.append([])
            room = capacity
        groups[-1].append(index)
        room -= weight
    return groups
