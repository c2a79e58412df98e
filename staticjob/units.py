"""Numbers as people read them: sizes, durations, rates and money."""

from __future__ import annotations

UNKNOWN = "unknown"


def size(number: float | None) -> str:
    """Bytes in binary units: `86.6 MiB`."""
    if number is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def count(number: float | None) -> str:
    """A count or rate, in full up to six digits: `45`, `3.14`, `6,530`, then in decimal units: `1.2 M`."""
    if number is None:
        return UNKNOWN
    if abs(number) < 999_999.5:
        return f"{number:.3g}" if abs(number) < 999.5 else f"{number:,.0f}"
    for unit, step in (("M", 1e6), ("G", 1e9)):
        if abs(number) < 999.5 * step:
            return f"{number / step:.3g} {unit}"
    return f"{number / 1e12:.3g} T"


def duration(seconds: float | None) -> str:
    """`0.42 s`, `58.1 s`, `12 min 5 s`, `3 h 20 min`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def money(amount: float | None) -> str:
    """Dollars to the cent, below ten cents with two significant digits: `$0.034`, `$0.10`, `$12.50`."""
    if amount is None:
        return UNKNOWN
    if amount == 0 or amount >= 0.0995:
        return f"${amount:,.2f}"
    return f"${amount:.2g}" if amount >= 1e-4 else f"${amount:.1e}"


def plural(number: int, noun: str, many: str = "") -> str:
    """`1 file`, `2,000 files`, `2 batches`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {many or noun + 's'}"
