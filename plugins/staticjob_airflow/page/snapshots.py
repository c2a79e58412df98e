"""Snapshots of jobs for many viewers: what has not changed is not read again."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from staticjob.records.commit import Commit
from staticjob.records.plan import Plan
from staticjob.records.prepared import Prepared
from staticjob.records.record import Record
from staticjob.status import JobStatus, read_object, read_status
from staticjob.storage.pinned import PinnedObject

R = TypeVar("R", bound=Record)
K = TypeVar("K")
V = TypeVar("V")

KEPT_RECORDS = 20_000
KEPT_JOBS = 64
FRESH_SECONDS = 2.0


class _Newest(Generic[K, V]):
    """The last used entries of a mapping, safe between threads."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._items: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The entry; two threads may make it at once, and then the first one made stays."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        made = make()
        with self._lock:
            kept = self._items.setdefault(key, made)
            while len(self._items) > self._kept:
                self._items.popitem(last=False)
            return kept


@dataclass
class _Entry:
    """The last snapshot of one job; the lock makes viewers who come at once share one reading."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    status: JobStatus | None = None
    taken: float = 0.0


class Snapshots:
    """Reads jobs by work prefix, each at most once in `FRESH_SECONDS`, and no object twice."""

    def __init__(self) -> None:
        self._jobs: _Newest[tuple[str | None, str], _Entry] = _Newest(KEPT_JOBS)
        self._records: _Newest[tuple[str | None, str, str], Any] = _Newest(KEPT_RECORDS)

    def get(self, work: str, store: str | None = None, *, latest: bool = False) -> JobStatus:
        """A snapshot of the job.

        store: the connection's name, which tells apart stores that have the same addresses.
        latest: read it now, for a run of which nobody will ask again.
        """
        entry = self._jobs.get_or_make((store, work), _Entry)
        with entry.lock:
            old = time.monotonic() - entry.taken > FRESH_SECONDS
            if entry.status is None or old or latest:
                entry.status = read_status(work, partial(self._read, store))
                entry.taken = time.monotonic()
            return entry.status

    def _read(self, store: str | None, source: PinnedObject, kind: type[R]) -> R:
        """A record by its address and version: the object under them never changes."""
        found: R = self._records.get_or_make(
            (store, source.uri, source.version), lambda: _lean(read_object(source, kind))
        )
        return found


def _lean(record: R) -> R:
    """The record without its parts that grow with the dataset and that no page shows."""
    if isinstance(record, Commit):
        return record.model_copy(update={"blocks": ()})
    if isinstance(record, Prepared):
        return record.model_copy(update={"files": ()})
    if isinstance(record, Plan):
        chunks = tuple(chunk.model_copy(update={"spans": ()}) for chunk in record.chunks)
        return record.model_copy(update={"chunks": chunks})
    return record
