"""Run sampled rows again beside other neighbours and compare bits with what was published.

A row's result must not depend on who shares its batch or where in the batch it stands. This
measures it: every sampled row is run twice in its own shape, once in a full batch of sampled
rows in random order, once in a half-empty batch with dummy rows in between.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from staticjob.engine.shape import Shape
from staticjob.errors import DataError
from staticjob.layout import Work
from staticjob.models import model_files
from staticjob.records.plan import Chunk, Plan
from staticjob.records.prepared import Prepared
from staticjob.records.record import Record
from staticjob.verifying.again import engine_again, run_again
from staticjob.verifying.samples import read_published, read_samples

# Largest difference of a number, relative beyond 1, that rounding explains, by the type the model ran in.
ROUNDING = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}


class RungVerdict(Record):
    """Sampled rows of one rung."""

    length: int
    batch: int
    rows: int
    compared: int = Field(description="results compared: each row that can be, in two batches")
    equal: int = Field(description="of these, bit-equal to the published one")
    not_finite: int = Field(description="of those compared, results that came out not finite now")
    max_difference: float = Field(
        description="largest difference of a number where finite, relative beyond 1"
    )


class VerifyReport(Record):
    """What verify saw."""

    rows: int = Field(description="rows sampled")
    skipped: int = Field(description="of these, rows without a published result, or with one of vLLM")
    compared: int
    equal: int
    not_finite: int = Field(description="of those compared, results that came out not finite now")
    max_difference: float
    bit_equal: bool
    within_rounding: bool
    device: str
    dtype: str
    rungs: tuple[RungVerdict, ...]

    def check(self) -> None:
        """Raise DataError when a result differs by more than rounding."""
        if self.within_rounding:
            return
        if self.not_finite:
            how = f"{self.not_finite} of them not finite now"
        else:
            explained = ROUNDING[self.dtype]
            how = f"by up to {self.max_difference:.3g} where {self.dtype} rounding explains {explained:.3g}"
        raise DataError(
            f"verify: {self.compared - self.equal} of {self.compared} results differ, {how}; "
            "was the output written by another model or engine?"
        )


def verify(work: Work, prepared: Prepared, plan: Plan, rows: int, seed: int) -> VerifyReport:
    """Sample about `rows` rows of all rungs, run them again and compare.

    Rows without a result or answered by another engine are counted as skipped. One that the run computed
    again in float32, for it was not finite, is compared with the same done again.
    Raises DataError when the output is not there or holds another number of rows.
    """
    rng = np.random.default_rng(seed)
    samples = {
        shape: [s for chunk, at in picked for s in read_samples(work, chunk, at)]
        for shape, picked in choose(plan, rows, rng).items()
    }
    model_dir = model_files.resolve_pinned(prepared.config.model, prepared.model)
    again = engine_again(prepared.config, model_dir, list(samples))
    read_published(prepared, [s for own in samples.values() for s in own], again.columns)
    verdicts = []
    skipped = 0
    for shape, own in samples.items():
        usable = [s for s in own if s.published]
        skipped += len(own) - len(usable)
        compared_rows = list(run_again(again, shape, usable, rng))
        verdicts.append(
            RungVerdict(
                length=shape.length,
                batch=shape.batch,
                rows=len(own),
                compared=len(compared_rows),
                equal=sum(row.equal for row in compared_rows),
                not_finite=sum(math.isinf(row.difference) for row in compared_rows),
                max_difference=max(
                    (row.difference for row in compared_rows if math.isfinite(row.difference)), default=0.0
                ),
            )
        )
    compared, equal = sum(v.compared for v in verdicts), sum(v.equal for v in verdicts)
    not_finite = sum(v.not_finite for v in verdicts)
    largest = max((v.max_difference for v in verdicts), default=0.0)
    return VerifyReport(
        rows=sum(v.rows for v in verdicts),
        skipped=skipped,
        compared=compared,
        equal=equal,
        not_finite=not_finite,
        max_difference=largest,
        bit_equal=compared == equal,
        within_rounding=not not_finite and largest <= ROUNDING[again.dtype],
        device=again.device,
        dtype=again.dtype,
        rungs=tuple(verdicts),
    )


def choose(
    plan: Plan, rows: int, rng: np.random.Generator
) -> dict[Shape, list[tuple[Chunk, NDArray[np.int64]]]]:
    """Rows to sample as (chunk, ascending row numbers in it), by shape.

    Every rung has one where `rows` allows it, the others fall by each rung's share of rows.
    """
    sizes = np.array([rung.rows for rung in plan.rungs], dtype=np.int64)
    wanted = min(rows, int(sizes.sum()))
    quota = np.zeros_like(sizes)
    occupied = np.flatnonzero(sizes)
    quota[rng.permutation(occupied)[:wanted]] = 1
    quota += rng.multivariate_hypergeometric(sizes - quota, wanted - int(quota.sum()), method="marginals")
    chosen: dict[Shape, list[tuple[Chunk, NDArray[np.int64]]]] = {}
    for rung, count in zip(plan.rungs, quota, strict=True):
        if not count:
            continue
        chunks = [c for c in plan.chunks if (c.length, c.batch) == (rung.length, rung.batch)]
        ends = np.cumsum([c.rows for c in chunks])
        at = np.sort(rng.choice(rung.rows, int(count), replace=False))
        owner = np.searchsorted(ends, at, side="right")
        chosen[Shape(rung.length, rung.batch)] = [
            (chunks[i], at[owner == i] - (ends[i] - chunks[i].rows)) for i in np.unique(owner)
        ]
    return chosen
