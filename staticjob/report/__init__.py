"""The report of a run: `build` decides its numbers, `render_html` draws them on one page."""

from staticjob.report.build import build
from staticjob.report.data import Report
from staticjob.report.html import render_html

__all__ = ["Report", "build", "render_html"]
