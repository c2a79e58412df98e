"""Ranks of rows among those of one group: 1 for the highest score."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from staticjob.errors import ConfigError
from staticjob.nearest import nearest

RANK = pa.field("rank", pa.int32())


def require_groups(kept: pa.Schema, column: str) -> None:
    """Raise ConfigError for a column that is not kept, or whose values are lists or objects."""
    if column not in kept.names:
        raise ConfigError(f"rerank.group_by: no column {column!r}{nearest(column, kept.names)}")
    kind = kept.field(column).type
    try:
        pa.nulls(0, kind).dictionary_encode()
    except pa.ArrowNotImplementedError:
        raise ConfigError(
            f"rerank.group_by: column {column!r} holds {kind}; group by a column of text or numbers"
        ) from None


def rank_rows(
    groups: pa.ChunkedArray, scores: NDArray[np.floating], answered: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """Rank [n] of every answered row among the answered rows of equal `groups` value; 0 for the others.

    groups, scores, answered: [n], in row order. Equal scores keep the order of their rows; null is a group.
    """
    codes = groups.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
    order = np.lexsort((-scores, codes, ~answered))[: int(answered.sum())]
    ordered = codes[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    place = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    ranks = np.zeros(len(scores), np.int32)
    ranks[order] = place + 1
    return ranks
