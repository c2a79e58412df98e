"""Rows that are lists: their elements' results, each on its own in the spool, become one row again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from staticjob import storage
from staticjob.errors import DataError
from staticjob.layout import Work
from staticjob.merging.ranks import rank_rows
from staticjob.merging.spool import Spool
from staticjob.records.prepared import Prepared
from staticjob.records.status import WITH_RESULT, Status
from staticjob.records.tokens import ITEMS_DTYPE, SplitStats

# Of a row's elements the one that comes last here decides: an error is the row's, a blank one is not.
SEVERITY = (Status.NULL, Status.EMPTY, Status.OK, Status.TRUNCATED, Status.TOO_LONG, Status.ERROR)
RESULT = [SEVERITY.index(status) for status in WITH_RESULT]


SCORE = pa.field("score", pa.float32())


def list_fields(score: pa.Field = SCORE) -> list[pa.Field]:
    """Output columns of a row of documents: `scores` and `ranks`, in their order."""
    return [
        pa.field(f"{score.name}s", pa.list_(score.type), metadata=score.metadata),
        pa.field("ranks", pa.list_(pa.int32())),
    ]


def read_counts(work: Work, prepared: Prepared, files: Iterable[int]) -> NDArray[np.int32]:
    """Elements of every row of these files, NO_LIST where a row is no list; DataError for a bad object."""
    wanted = set(files)
    pieces: list[tuple[int, int, NDArray[np.int32]]] = []
    for split in prepared.splits:
        if not any(piece.file in wanted for piece in split.slices):
            continue
        counts = np.frombuffer(storage.read(work.items(split.id)), ITEMS_DTYPE)
        slices = storage.read_json(work.split(split.id), SplitStats).slices
        if sum(piece.rows for piece in slices) != len(counts):
            raise DataError(f"{work.items(split.id)}: damaged; delete {work.uri} and run the job again")
        at = 0
        for piece in slices:
            if piece.file in wanted:
                pieces.append((piece.file, piece.first_row, counts[at : at + piece.rows]))
            at += piece.rows
    pieces.sort(key=lambda piece: piece[:2])
    return np.concatenate([np.empty(0, ITEMS_DTYPE), *(counts for _, _, counts in pieces)])


@dataclass
class ListRows:
    """Reads rows of one file as its output has them.

    spool: of the elements, whose only head is SCORE. first: position of the file's first element; counts:
    elements per row [n]. `statuses` counts the elements that were read.
    """

    spool: Spool
    first: int
    counts: NDArray[np.int32]
    statuses: Counter[Status] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._places = np.concatenate([[0], np.cumsum(np.maximum(self.counts, 1), dtype=np.int64)])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's results in the spool, on average."""
        return self.spool.row_bytes * int(self._places[-1]) // len(self.counts) if len(self.counts) else 1

    def read(self, start: int, stop: int) -> dict[str, pa.Array]:
        """Columns of rows start..stop: the lists, then status, reason, n_tokens, engine, rung."""
        places, counts = self._places[start : stop + 1], self.counts[start:stop]
        items = self.spool.read(self.first + int(places[0]), self.first + int(places[-1]))
        begins = places[:-1] - places[0]
        rows = np.repeat(np.arange(len(counts)), np.diff(places))  # of every element
        severity = pc.index_in(items["status"], pa.array([s.value for s in SEVERITY])).to_numpy()
        counted = np.bincount(severity, minlength=len(SEVERITY))
        self.statuses.update({s: int(n) for s, n in zip(SEVERITY, counted, strict=True) if n})
        worst = np.maximum.reduceat(severity, begins)
        decisive = np.flatnonzero(severity == worst[rows])
        decisive = decisive[np.unique(rows[decisive], return_index=True)[1]]  # a row's first
        run = items["engine"].is_valid().to_numpy(zero_copy_only=False)
        engines = np.where(run, np.arange(len(rows)), begins[rows])
        rungs = np.maximum.reduceat(items["rung"].fill_null(0).to_numpy(), begins)
        reasons = items["reason"].take(pa.array(decisive)).to_pylist()
        return {
            **self._lists(items[SCORE.name], rows, counts, worst),
            "status": items["status"].take(pa.array(decisive)),
            "reason": pa.array(map(_reason, reasons, decisive - begins, counts), pa.string()),
            "n_tokens": pa.array(np.add.reduceat(items["n_tokens"].to_numpy(), begins)),
            "engine": items["engine"].take(pa.array(np.maximum.reduceat(engines, begins))),
            "rung": pa.array(rungs, mask=rungs == 0),
        }

    def _lists(
        self, scores: pa.Array, rows: NDArray[np.int64], counts: NDArray[np.int32], worst: NDArray[np.int64]
    ) -> dict[str, pa.Array]:
        """Lists [n], null in a blank element's place, and null where a row has no result."""
        valid = scores.is_valid().to_numpy(zero_copy_only=False)
        ranks = rank_rows(pa.chunked_array([rows]), scores.fill_null(0).to_numpy(), valid)
        null = ~np.isin(worst, RESULT) & (counts != 0)
        sizes = np.where(null, 0, np.maximum(counts, 0))
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
        kept = pa.array(sizes[rows] > 0)
        return {
            out.name: pa.ListArray.from_arrays(offsets, values.filter(kept), out.type, mask=pa.array(null))
            for out, values in zip(list_fields(), (scores, pa.array(ranks, mask=~valid)), strict=True)
        }


def _reason(reason: str | None, element: int, count: int) -> str | None:
    """Why a row is as it is; with the number of the document where it is one document's reason."""
    return f"document {element}: {reason}" if reason and count > 0 else reason
