"""The report as one HTML page: no script, no external asset, everything shown is escaped."""

from __future__ import annotations

from collections.abc import Callable

from jinja2 import Environment, PackageLoader, StrictUndefined

from staticjob.ledger import Ledger
from staticjob.report.data import Report, RungReport
from staticjob.report.pictures import Piece, stack
from staticjob.report.texts import draw
from staticjob.units import count, duration, money, plural, size

UNITS: dict[str, Callable[[float | None], str]] = {"duration": duration, "money": money, "size": size}
KINDS = ("useful", "padding", "dummy", "finished")


def environment() -> Environment:
    """Where pages are drawn: every text is escaped, and a name that is not there is an error."""
    made = Environment(
        loader=PackageLoader("staticjob.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= UNITS
    made.filters |= {"count": count, "percent": percent, "plural": plural, "show_with": show_with}
    return made


def render_html(report: Report) -> str:
    """Draw the report."""
    template = environment().get_template("page.html.j2")
    return template.render(
        r=report,
        kinds=[kind for kind in KINDS if getattr(report.ledger, kind)],
        largest_rung=max((rung.ledger.slots for rung in report.rungs), default=0),
        orders=order_bars(report),
        ledger_bar=ledger_bar,
        flops_bar=flops_bar,
        compare_bar=compare_bar,
        longest=max((rung.seconds or rung.predicted_seconds or 0 for rung in report.rungs), default=0),
        flops_scale=_flops_scale(report),
        above_ceiling=_above_ceiling(report),
        draw=draw,
        steps=max((len(rung.curve.active) for rung in report.texts.rungs), default=0) if report.texts else 0,
    )


def show_with(value: float | None, unit: str) -> str:
    """A value in the unit of that name, for macros that take it as an argument."""
    return UNITS[unit](value)


def percent(share: float | None) -> str:
    """`90.9%`; an unknown share is a dash."""
    return "–" if share is None else f"{share:.1%}"


def ledger_bar(ledger: Ledger, scale: float) -> list[Piece]:
    """Slots by what they were spent on."""
    parts = [(kind, getattr(ledger, kind)) for kind in KINDS]
    return stack([(kind, slots, f"{kind}: {slots:,} slots") for kind, slots in parts], scale)


def order_bars(report: Report) -> list[tuple[str, str, int, list[Piece]]]:
    """(name, explanation, slots, bar) of the three orders and of what was computed."""
    # What rows grow by is the same in every order.
    paid = report.texts.prompts if report.texts else report.paid
    orders = [
        ("Arrival order", "32 rows a batch, padded to the longest", report.orders.arrival),
        ("Fully sorted", "32 rows a batch, a new shape for almost every batch", report.orders.sorted),
        ("This ladder", f"{plural(len(report.rungs), 'fixed shape')}, as planned", report.orders.ladder),
        ("Paid", "slots of the committed chunks", paid.slots),
    ]
    scale = max(slots for _, _, slots in orders)
    bars = []
    for name, what, slots in orders:
        useful = paid.useful if name == "Paid" else report.tokens
        waste = f"everything else: {slots - useful:,} slots"
        parts = [("useful", useful, f"useful: {useful:,} slots"), ("padding", slots - useful, waste)]
        bars.append((name, what, slots, stack(parts, scale)))
    return bars


def _flops_scale(report: Report) -> float:
    """FLOP/s of a full bar: the device's ceiling, or the best shape where it is unknown."""
    best = max((rung.flops or 0 for rung in report.rungs), default=0)
    return report.ceilings.flops if report.ceilings else best


def _above_ceiling(report: Report) -> bool:
    """Whether a shape ran faster than the device's ceiling is said to be."""
    most = report.ceilings
    return most is not None and any(
        (rung.flops or 0) > most.flops or (rung.bytes_per_second or 0) > most.bytes_per_second
        for rung in report.rungs
    )


def flops_bar(rung: RungReport, scale: float) -> list[Piece]:
    """Achieved FLOP/s: the useful share, then what padding and dummies took; at most a full bar."""
    useful, total = rung.useful_flops or 0.0, rung.flops or 0.0
    return stack(
        [
            ("useful", useful, f"useful: {count(useful)}FLOP/s"),
            ("padding", total - useful, f"padding and dummies: {count(total - useful)}FLOP/s"),
        ],
        max(scale, total),
    )


def compare_bar(value: float | None, scale: float, kind: str, label: str) -> list[Piece]:
    """One plain bar, empty where the value is unknown."""
    return stack([(kind, value or 0.0, label)], scale)
