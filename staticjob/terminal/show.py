"""The plan as tables on a terminal: what the run will do and cost, before anything is spent."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from staticjob.records.memory import ShapeMemory
from staticjob.records.plan import Plan
from staticjob.units import count, duration, money, plural, size

BAR = 30


def show_plan(plan: Plan, console: Console) -> None:
    """Print rows, ladder, orders, memory, time and cost."""
    statuses = " · ".join(f"{number:,} {status}" for status, number in plan.statuses.items())
    rows = sum(plan.file_rows)
    elements = f" with {plan.items:,} elements" if plan.items != rows else ""
    files = plural(len(plan.file_rows), "file")
    console.print(Text(f"{plural(rows, 'row')}{elements} in {files}: {statuses or 'none'}"))
    for error in plan.first_errors[:5]:
        console.print(Text(f"  {error.file} {error.at}: {error.status}: {error.reason}", style="yellow"))
    if plan.rungs:
        console.print(_ladder(plan))
        console.print(_orders(plan))
    console.print(_memory(plan))
    console.print(_forecast(plan))


def _table(title: str, *columns: str) -> Table:
    """A table whose first column is left-aligned, the others right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", no_wrap=True)
    return table


def _ladder(plan: Plan) -> Table:
    title = f"Ladder: {plural(len(plan.rungs), 'rung')}, {plan.token_budget:,} slots a batch"
    table = _table(title, "rung", "batch", "rows", "batches", "slots", "padding", "dummy", "useful")
    table.show_footer = True
    for rung in plan.rungs:
        ledger = rung.ledger
        table.add_row(
            str(rung.length),
            str(rung.batch),
            f"{rung.rows:,}",
            f"{rung.batches:,}",
            f"{ledger.slots:,}",
            f"{ledger.padding:,}",
            f"{ledger.dummy:,}",
            f"{ledger.useful_share:.1%}",
        )
    total = plan.ledger
    footers = (
        "all",
        "",
        f"{sum(r.rows for r in plan.rungs):,}",
        f"{sum(r.batches for r in plan.rungs):,}",
        f"{total.slots:,}",
        f"{total.padding:,}",
        f"{total.dummy:,}",
        f"{total.useful_share:.1%}",
    )
    for column, footer in zip(table.columns, footers, strict=True):
        column.footer = footer
    return table


def _orders(plan: Plan) -> Table:
    table = _table("The same rows in three orders", "order", "slots", "useful", "of the largest")
    table.columns[-1].justify = "left"
    orders = {
        "arrival, 32 a batch": plan.orders.arrival,
        "sorted, 32 a batch": plan.orders.sorted,
        "this ladder": plan.orders.ladder,
    }
    largest = max(orders.values())
    for name, slots in orders.items():
        bar = "█" * round(BAR * slots / largest)
        table.add_row(name, f"{slots:,}", f"{plan.ledger.useful / slots:.1%}", bar)
    return table


def _memory(plan: Plan) -> Table:
    memory = plan.memory
    free = "free memory unknown" if memory.available is None else f"{size(memory.available)} free"
    title = f"Memory on {memory.device} ({memory.dtype}): {size(memory.peak)} at most, {free}"
    shapes = _worth_showing(memory.shapes)
    table = _table(title, "term", *(f"{s.batch}×{s.length}" for s in shapes), "arithmetic of the largest")
    table.columns[-1].justify = "left"
    table.columns[-1].no_wrap = False
    for row, term in enumerate(shapes[0].terms if shapes else ()):
        table.add_row(term.name, *(size(s.terms[row].bytes) for s in shapes), term.formula)
    if shapes:
        table.add_row("sum", *(size(s.bytes) for s in shapes), "", style="bold")
    return table


def _worth_showing(shapes: tuple[ShapeMemory, ...]) -> list[ShapeMemory]:
    """The largest shape first, then the longest and the shortest rung where they are others."""
    if not shapes:
        return []
    chosen = [max(shapes, key=lambda shape: shape.bytes), shapes[0], shapes[-1]]
    return list({(shape.length, shape.batch): shape for shape in chosen}.values())


def values_table(title: str) -> Table:
    """A table of names and values, which may be sentences."""
    table = _table(title, "what", "value")
    table.columns[-1].justify = "left"
    table.columns[-1].no_wrap = False
    return table


def _forecast(plan: Plan) -> Table:
    table = values_table("Forecast")
    forecast = plan.forecast
    tasks = plural(len(plan.packs), "mapped task"), plural(len(plan.groups), "merge task")
    table.add_row("chunks", f"{len(plan.chunks):,} in {tasks[0]}, then {tasks[1]}")
    table.add_row("device time", duration(forecast.seconds))
    if forecast.seconds:
        table.add_row("useful tokens per device second", count(plan.ledger.useful / forecast.seconds))
    table.add_row("cost", money(forecast.cost))
    table.add_row("per million useful tokens", money(forecast.cost_per_million_useful_tokens))
    table.add_row("basis", forecast.basis)
    return table
