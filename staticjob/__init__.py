"""Offline inference in static shapes: sorted, planned, resumable, merged in the input's order."""

__version__ = "0.1.0"
