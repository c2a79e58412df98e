"""A query and a list of documents: each document with the query is a row's item, encoded like a whole row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from staticjob.encoding.outcome import Encoded
from staticjob.records.status import Status
from staticjob.tasks.task_module import RowEncoder


class DocumentsEncoder:
    """The roles `query` and `documents` by an encoder of `query` and `document`."""

    def __init__(self, pairs: RowEncoder) -> None:
        self._pairs = pairs

    def encode(self, columns: Mapping[str, Sequence[Any]]) -> list[Encoded]:
        """One outcome per row, in order, with those of its documents."""
        rows = list(zip(columns["query"], columns["documents"], strict=True))
        unusable = [_unusable(documents) for _, documents in rows]
        present = [row for row, problem in zip(rows, unusable, strict=True) if problem is None]
        found = iter(
            self._pairs.encode(
                {
                    "query": [query for query, documents in present for _ in documents],
                    "document": [document for _, documents in present for document in documents],
                }
            )
        )
        return [
            problem or _row([next(found) for _ in documents])
            for (_, documents), problem in zip(rows, unusable, strict=True)
        ]


def _unusable(documents: Any) -> Encoded | None:
    """The outcome of a row whose documents are no list of texts; None where they are."""
    if documents is None:
        return Encoded((), Status.NULL, "no value in documents")
    if not isinstance(documents, list) or not all(isinstance(d, str | None) for d in documents):
        return Encoded((), Status.ERROR, "documents: expected a list of texts")
    return None


def _row(documents: list[Encoded]) -> Encoded:
    """A row all of whose documents are blank, or fail alike, has as a whole the outcome of the first."""
    if not documents:
        return Encoded((), Status.EMPTY, "no documents", items=())
    first = documents[0]
    blank = all(document.status in (Status.NULL, Status.EMPTY) for document in documents)
    if blank or (not first.ids and all(document == first for document in documents)):
        return first
    return Encoded((), Status.OK, items=tuple(documents))
