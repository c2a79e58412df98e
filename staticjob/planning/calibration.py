"""Rates of a job that has not run yet: a few of its shapes, timed here as a worker would run them."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from staticjob.config.job import JobConfig
from staticjob.engine.shape import Shape
from staticjob.errors import InfrastructureError
from staticjob.machine.prctl import end_with_parent
from staticjob.records.rates import Rates


def calibrate(config: JobConfig, model_dir: Path, shapes: Sequence[Shape]) -> Rates:
    """Rates of a few of `shapes`, what a start takes, and what the device can do at best.

    A worker's start is mostly its imports. Where this process has made them already (a chat template
    does), a fresh one measures. Raises what bringing up the engine raises, InfrastructureError when the
    fresh process is killed.
    """
    if is_fresh():
        return measure_here(config, model_dir, shapes)
    with ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=end_with_parent, initargs=(signal.SIGKILL,)
    ) as process:
        try:
            return process.submit(measure_here, config, model_dir, shapes).result()
        except BrokenProcessPool as error:
            raise InfrastructureError(
                f"model {model_dir}: the process that measures its speed was killed, as by a memory limit; "
                "plan where a worker has room, or with --no-calibrate"
            ) from error


def is_fresh() -> bool:
    """Whether this process has yet to import what a worker's start is mostly made of."""
    return "torch" not in sys.modules


def measure_here(config: JobConfig, model_dir: Path, shapes: Sequence[Shape]) -> Rates:
    """As `calibrate`, in this process."""
    began = time.perf_counter()
    from staticjob.engine.calibrate import ceilings, measure
    from staticjob.engine.static_engine import StaticEngine

    engine = StaticEngine(model_dir, config, shapes)
    rates = measure(engine, shapes, time.perf_counter() - began)
    return rates.model_copy(update={"ceilings": ceilings(rates.device, rates.dtype)})
