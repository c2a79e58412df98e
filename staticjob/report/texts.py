"""The report's part on generation: active rows by rung, what left for vLLM, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from staticjob.generating.outcome import Curve, Outcome, VllmWork
from staticjob.generating.policy import Decision
from staticjob.ledger import Ledger
from staticjob.records.commit import Commit
from staticjob.records.record import Record

WIDTH, HEIGHT = 1000.0, 240.0
# Points of a drawn curve: more are closer together than a pixel.
POINTS = 500


class RungCurve(Record):
    """Static decoding at one rung."""

    length: int
    batch: int
    curve: Curve
    prompts: Ledger
    decode: Ledger


class ChunkDecisions(Record):
    """What the policy decided for one chunk, in order."""

    chunk: str
    tails: int
    decisions: tuple[Decision, ...]


class TextsReport(Record):
    """All texts of a run."""

    rungs: tuple[RungCurve, ...] = Field(description="longest first; those that ran statically")
    curve: Curve
    prompts: Ledger
    decode: Ledger
    vllm: VllmWork
    finish: dict[str, int]
    generated: int = Field(description="tokens")
    chunks: tuple[ChunkDecisions, ...]


def texts_of(commits: Sequence[Commit]) -> TextsReport | None:
    """From the commits of chunks that generate; None where there are none."""
    known = [(commit, commit.generation) for commit in commits if commit.generation]
    if not known:
        return None
    outcomes = [outcome for _, outcome in known]
    shapes = sorted({(commit.length, commit.batch) for commit, _ in known}, reverse=True)
    rungs = []
    for length, batch in shapes:
        own = [o for c, o in known if (c.length, c.batch) == (length, batch)]
        curve = _sum_curves(own)
        if curve.rows:
            rungs.append(
                RungCurve(length=length, batch=batch, curve=curve, prompts=_prompts(own), decode=_decode(own))
            )
    finish: Counter[str] = Counter()
    for outcome in outcomes:
        finish.update(outcome.finish)
    return TextsReport(
        rungs=tuple(rungs),
        curve=_sum_curves(outcomes),
        prompts=_prompts(outcomes),
        decode=_decode(outcomes),
        vllm=sum((o.vllm for o in outcomes), VllmWork()),
        finish=dict(finish),
        generated=sum(tokens * rows for o in outcomes for tokens, rows in o.lengths.items()),
        chunks=tuple(
            ChunkDecisions(chunk=c.chunk, tails=o.vllm.tails + o.vllm.rows, decisions=o.decisions)
            for c, o in known
            if o.decisions
        ),
    )


def _sum_curves(outcomes: Sequence[Outcome]) -> Curve:
    return sum((o.curve for o in outcomes), Curve.of([]))


def _prompts(outcomes: Sequence[Outcome]) -> Ledger:
    return sum((o.prompts for o in outcomes), Ledger())


def _decode(outcomes: Sequence[Outcome]) -> Ledger:
    return sum((o.decode for o in outcomes), Ledger())


@dataclass(frozen=True)
class Handover:
    """Where rows left: its place in the picture, and what to say of it."""

    x: float
    label: str


@dataclass(frozen=True)
class CurvePicture:
    """Geometry of one curve in a picture of WIDTH x HEIGHT: share of rows active over steps."""

    points: str
    area: str
    handovers: tuple[Handover, ...]
    half: float | None


def draw(curve: Curve, steps: int) -> CurvePicture:
    """`steps` is the full width; the curve ends at 0 where every row had ended or left."""
    rows, scale = max(1, curve.rows), WIDTH / max(1, steps)
    shares = [*(count / rows for count in curve.active), 0.0]
    every = max(1, len(shares) // POINTS)
    kept = [t for t in range(len(shares)) if t % every == 0 or t == len(shares) - 1]
    points = [(round(t * scale, 1), round(HEIGHT * (1 - shares[t]), 1)) for t in kept]
    line = " ".join(f"{x},{y}" for x, y in points)
    return CurvePicture(
        points=line,
        area=f"0,{HEIGHT} {line} {points[-1][0]},{HEIGHT}",
        handovers=tuple(
            Handover(round(step * scale, 1), f"step {step}: {count} rows handed over to vLLM")
            for step, count in curve.handovers.items()
        ),
        half=None if curve.half_step is None else round(curve.half_step * scale, 1),
    )
