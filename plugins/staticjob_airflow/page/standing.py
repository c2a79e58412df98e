"""Whose output stands where a run publishes: a date that is run again otherwise is published over."""

from __future__ import annotations

from pydantic import BaseModel

from staticjob import claim, storage
from staticjob.layout import Output
from staticjob.status import JobStatus


class _Standing(BaseModel):
    """Of the published manifest what tells whose it is, whichever version wrote the rest."""

    fingerprint: str
    finished: str


def of_another_run(status: JobStatus) -> str:
    """One line that says so where the published manifest and report are another run's; else empty."""
    if status.state == "done":
        return ""
    own, output = status.prepared.fingerprint, Output(status.prepared.config.output.uri)
    standing = storage.find_json(output.manifest, _Standing)
    if standing is None or standing.fingerprint == own:
        return ""
    other = f"the run with fingerprint {standing.fingerprint[:16]}, finished {standing.finished}"
    held = claim.holder(output)
    if held is not None and held.fingerprint == own:
        return f"This run has published nothing yet: what stands at {output.uri} is of {other}."
    return f"This output was published again by {other}; its report is not this run's."
