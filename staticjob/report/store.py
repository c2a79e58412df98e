"""A job's report, made from its model's config and laid beside its output."""

from __future__ import annotations

from collections.abc import Sequence

from staticjob import storage
from staticjob.clock import now
from staticjob.layout import Output
from staticjob.models import model_files
from staticjob.records.commit import Commit
from staticjob.records.plan import Plan
from staticjob.records.prepared import Prepared
from staticjob.report.build import build
from staticjob.report.data import Report
from staticjob.report.html import render_html


def make_report(prepared: Prepared, plan: Plan, commits: Sequence[Commit]) -> Report:
    """The report of the chunks committed so far."""
    return build(
        prepared,
        plan,
        commits,
        model_config=model_files.model_config(model_files.resolve(prepared.config.model)),
        command=rerun_command(prepared),
        generated=now(),
    )


def store_report(prepared: Prepared, report: Report) -> None:
    """Write it as JSON and as a page."""
    output = Output(prepared.config.output.uri)
    storage.put_json(output.report_json, report)
    storage.put(output.report_html, render_html(report).encode())


def rerun_command(prepared: Prepared) -> str:
    """The command that runs exactly this job again, from the resolved job file in its work prefix."""
    work = Output(prepared.config.output.uri).work(prepared.fingerprint)
    return f"staticjob run {work.config}"
