"""Which run owns an output prefix: the newest that prepared it, and it alone may publish there.

A claim is an object `_staticjob/claims/<n>.json` put if absent, n one more than the highest
so far; the highest holds the prefix. Claims are never rewritten, so who comes first is decided
by the store. A run that was overtaken notices before each object it would publish or delete and stops.

Four rules make the published objects all of one run, whatever the race:
  1. a run publishes an output file only while it holds the claim (`Claim.check`);
  2. it records the version of every file it published, taken while it still held the claim;
  3. `_SUCCESS` of another run is deleted before the first file is overwritten, and left-over
     files of other runs before the own `_SUCCESS` is written (`finish`);
  4. `_SUCCESS` is written only if every file still has its recorded version and the claim holds;
     the claim is looked at once more afterwards, and a `_SUCCESS` written too late is taken back.
"""

from __future__ import annotations

from dataclasses import dataclass

from staticjob import storage
from staticjob.clock import now
from staticjob.errors import DataError, InfrastructureError
from staticjob.layout import Output
from staticjob.records.record import Record

TRIES = 20  # of as many runs that claim an output in the same moment, the last one comes through


class ClaimRecord(Record):
    """One claim object."""

    fingerprint: str
    taken: str


@dataclass(frozen=True)
class Claim:
    """Claim number `number` of an output prefix, held by a run."""

    output: Output
    number: int
    fingerprint: str

    def check(self) -> None:
        """Raise DataError once another run has claimed the prefix. Costs one HEAD request."""
        if storage.head(self.output.claim(self.number + 1)) is not None:
            raise _lost(self.output, self.fingerprint, holder(self.output))


def take(output: str, fingerprint: str) -> Claim:
    """Claim the output prefix `output`; a claim of the same run is kept, another's is ended.

    Raises InfrastructureError for a store that refuses a claim as taken and does not list it.
    """
    place = Output(output)
    for _ in range(TRIES):
        newest = holder(place)
        if newest is not None and newest.fingerprint == fingerprint:
            return newest
        number = newest.number + 1 if newest else 1
        record = ClaimRecord(fingerprint=fingerprint, taken=now())
        if storage.put_json_if_absent(place.claim(number), record):
            return Claim(place, number, fingerprint)
    raise InfrastructureError(
        f"{place.claims}: the store has claim {number} and does not list it, {TRIES} times in a row; "
        "run again, or choose another output.uri"
    )


def hold(output: str, fingerprint: str) -> Claim:
    """The claim of a run, taken now if nobody has one; DataError when another run holds the output."""
    place = Output(output)
    newest = holder(place)
    if newest is None:
        return take(output, fingerprint)
    if newest.fingerprint != fingerprint:
        raise _lost(place, fingerprint, newest)
    return newest


def end_other_success(claim: Claim) -> None:
    """Delete `_SUCCESS` unless this run wrote it: its files are about to be replaced.

    Raises DataError instead when the claim is lost: then it may be the winner's.
    """
    written = success_of(claim.output)
    if written is not None and written != claim.fingerprint:
        claim.check()
        storage.delete([claim.output.success])


def withdraw_success(claim: Claim) -> None:
    """Delete `_SUCCESS` if this run wrote it."""
    if success_of(claim.output) == claim.fingerprint:
        storage.delete([claim.output.success])


def earlier_runs(claim: Claim) -> tuple[str, ...]:
    """Fingerprints of the other runs that claimed this output before."""
    earlier = [
        item.uri for item in storage.list_objects(claim.output.claims) if _number(item.uri) < claim.number
    ]
    records = [storage.read_json(uri, ClaimRecord) for uri in earlier]
    return tuple(sorted({record.fingerprint for record in records} - {claim.fingerprint}))


def success_of(output: Output) -> str | None:
    """Fingerprint of the run whose `_SUCCESS` stands; None when there is no `_SUCCESS`."""
    written = storage.find(output.success)
    return None if written is None else written.decode("utf-8", "replace").strip()


def holder(output: Output) -> Claim | None:
    """The newest claim on an output prefix; None when nobody has prepared a run for it."""
    newest = max((item.uri for item in storage.list_objects(output.claims)), default=None)
    if newest is None:
        return None
    record = storage.read_json(newest, ClaimRecord)
    return Claim(output, _number(newest), record.fingerprint)


def _number(uri: str) -> int:
    return int(uri.rsplit("/", 1)[1].removesuffix(".json"))


def _lost(output: Output, fingerprint: str, newest: Claim | None) -> DataError:
    other = f"run {newest.fingerprint[:16]}" if newest else "another run"
    return DataError(
        f"{output.uri}: {other} has claimed this output, so run {fingerprint[:16]} stops publishing; "
        "run its job again to take the output back, or give it another output.uri"
    )
