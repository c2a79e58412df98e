"""Time and cost of a plan from measured rates, before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence

from staticjob.records.plan import Chunk
from staticjob.records.rates import Forecast, Rates, ShapeRate
from staticjob.units import plural

# Storing a chunk's result, commit and progress: about ten requests of a store nearby. Every rung has a
# chunk of its own, so a rung costs this too.
COMMIT_SECONDS = 0.1
# Rates to plan with (never to forecast with) until the device has been measured: a small encoder on
# two CPU cores, and on one data-centre GPU. They size chunks and packs and price a rung.
_ASSUMED = {
    "cpu": Rates(
        device="cpu",
        dtype="float32",
        shapes=(ShapeRate(length=128, batch=32, seconds=4096 / 7_000),),
        start_seconds=6.0,
        rung_seconds=0.05,
        source="assumed: 7,000 slots/s",
    ),
    "cuda": Rates(
        device="cuda",
        dtype="bfloat16",
        shapes=(ShapeRate(length=128, batch=512, seconds=65_536 / 1_000_000),),
        start_seconds=15.0,
        rung_seconds=0.2,
        source="assumed: 1,000,000 slots/s",
    ),
}


def assumed_rates(kind: str) -> Rates:
    """Rates to plan with where none were measured, by kind of device: `cpu` or `cuda`."""
    return _ASSUMED[kind]


def seconds_per_slot(rates: Rates, length: int) -> float:
    """Cost of one slot at a rung, interpolated over length between the measured shapes.

    Attention makes a slot dearer the longer its row; above the longest measured shape the last
    slope goes on, below the shortest the cost stays flat.
    """
    points = sorted((shape.length, shape.seconds / (shape.batch * shape.length)) for shape in rates.shapes)
    if length <= points[0][0] or len(points) == 1:
        return points[0][1]
    upper = next((i for i, (at, _) in enumerate(points) if at >= length), len(points) - 1)
    (x0, y0), (x1, y1) = points[upper - 1], points[upper]
    if x0 == x1:
        return y1
    return max(y0 + (y1 - y0) * (length - x0) / (x1 - x0), min(y0, y1))


def rung_cost_slots(rates: Rates) -> float:
    """What one more rung costs (warm-up, commit), expressed in slots at the measured average speed."""
    slots = sum(shape.batch * shape.length for shape in rates.shapes)
    seconds = sum(shape.seconds for shape in rates.shapes)
    return (rates.rung_seconds + COMMIT_SECONDS) * slots / seconds


def idle_slots(budget: int, lanes: int) -> float:
    """Slots that one more rung costs beside its warm-up: its last batch leaves the other lanes idle."""
    return budget * (lanes - 1) / 2


def chunk_seconds(rates: Rates, chunk: Chunk, lanes: int = 1) -> float:
    """Compute seconds of one chunk, whose batches are computed `lanes` at a time."""
    turns = -(-chunk.batches // lanes)
    return turns * lanes * chunk.batch * chunk.length * seconds_per_slot(rates, chunk.length)


def forecast(
    chunks: Sequence[Chunk],
    packs: Sequence[Sequence[str]],
    rates: Rates | None,
    gpu_hour: float | None,
    lanes: int = 1,
) -> Forecast:
    """Device time of all packs one after another, and what it costs at `gpu_hour` per hour.

    seconds = sum of chunk seconds + a commit per chunk + start_seconds per pack + rung_seconds per
    rung of each pack.
    """
    if rates is None or not rates.shapes:
        basis = "no rates yet: a calibration or the first run measures them"
        return Forecast(seconds=None, cost=None, cost_per_million_useful_tokens=None, basis=basis)
    length_of = {chunk.id: chunk.length for chunk in chunks}
    warm_ups = sum(len({length_of[chunk] for chunk in pack}) for pack in packs)
    compute = sum(chunk_seconds(rates, chunk, lanes) for chunk in chunks)
    commits = len(chunks) * COMMIT_SECONDS
    seconds = compute + commits + len(packs) * rates.start_seconds + warm_ups * rates.rung_seconds
    useful = sum(chunk.ledger.useful for chunk in chunks)
    cost = None if gpu_hour is None else seconds / 3600 * gpu_hour
    basis = (
        f"{plural(len(rates.shapes), 'shape')} measured on {rates.device} in {rates.dtype} ({rates.source})"
        f"{_extrapolated(rates, sorted(set(length_of.values())))}; "
        f"{compute:,.1f} s compute, {plural(len(packs), 'start')} of {rates.start_seconds:.1f} s, "
        f"{plural(warm_ups, 'warm-up')} of {rates.rung_seconds:.2f} s, "
        f"{plural(len(chunks), 'commit')} of {COMMIT_SECONDS:.1f} s"
    )
    return Forecast(
        seconds=seconds,
        cost=cost,
        cost_per_million_useful_tokens=cost / useful * 1e6 if cost is not None and useful else None,
        basis=basis,
    )


def _extrapolated(rates: Rates, lengths: Sequence[int]) -> str:
    """Which of the plan's lengths lie outside those that were measured; '' where none does."""
    measured = [shape.length for shape in rates.shapes]
    outside = [length for length in lengths if not min(measured) <= length <= max(measured)]
    if not outside:
        return ""
    span = f"{min(measured)} to {max(measured)}" if min(measured) < max(measured) else f"{measured[0]}"
    return f", extrapolated from lengths of {span} to {', '.join(map(str, outside))}"
