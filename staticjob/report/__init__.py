"""The report of a run: `build.py` decides its numbers, `html.py` draws them on one page."""
