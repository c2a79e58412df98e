"""The policy at work on one chunk: what was seen so far, what is left, and every decision that was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from staticjob.generating.decode_rates import StaticRates, StepTimes, VllmRates
from staticjob.generating.policy import Decision, Rules, Running, Scope, Waiting, decide
from staticjob.generating.survival import Observed, survival

Engine = Literal["auto", "static", "vllm"]
# Decode passes between two decisions of a batch: each costs a few milliseconds.
DECIDE_STEPS = 8


@dataclass
class TailPolicy:
    """Answers two questions of a chunk: may the next batch begin, and does this one hand over now?

    `scope` holds the whole chunk before its first batch. What an earlier run left is a start: its rates
    give way to this run's as soon as there are some, its lengths count beside this run's.
    """

    engine: Engine
    scope: Scope
    batch: int
    lanes: int
    device: str
    earlier: Observed | None = None
    static: StaticRates | None = None
    vllm: VllmRates | None = None
    least_gain: float = 0.05
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen = Observed(self.scope.cap)
        self._times = StepTimes(self.batch, self.lanes)
        self._running: dict[int, _Running] = {}

    def sends_rest(self) -> bool:
        """Whether all rows that are not begun are to go to vLLM; asked first before anything is loaded."""
        if self.engine != "auto":
            return self.engine == "vllm"
        decision = self._decide(None)
        return decision is not None and decision.rest_to_vllm

    def begin(self, index: int, rows: int) -> bool:
        """Whether batch `index` of `rows` rows is run statically; if not, it and all after it go to vLLM."""
        if self.sends_rest():
            return False
        self.scope = replace(self.scope, rows_to_come=self.scope.rows_to_come - rows)
        self._running[index] = _Running(rows)
        return True

    def look(self, index: int, step: int, curve: Sequence[int], seconds: float) -> bool:
        """Whether batch `index` hands over after `step` decode passes, `seconds` after it began.

        curve[i] of its rows went on after token i + 1; the last entry is now.
        """
        running = self._running[index]
        self._time(running, step, seconds)
        running.curve = tuple(curve)
        if self.engine != "auto" or step < running.decide_at:
            return False
        running.decide_at = step + DECIDE_STEPS
        decision = self._decide(Running(step, curve[-1]))
        return decision is not None and decision.hand_over_at <= step

    @property
    def active(self) -> tuple[int, int]:
        """Rows not ended of the batches under way, as last seen, and all rows of those batches."""
        running = tuple(self._running.values())
        return sum(r.curve[-1] if r.curve else r.rows for r in running), sum(r.rows for r in running)

    @property
    def vllm_due(self) -> bool:
        """Whether rows go to vLLM anyhow, of this chunk or of the process's others."""
        return not self.scope.start_share or bool(self.scope.waiting)

    def end(self, index: int, curve: Sequence[int]) -> None:
        """Batch `index` has stopped; curve ends with the rows it left to vLLM, or 0."""
        self._seen.add_curve(self._running.pop(index).rows, curve)
        if curve[-1]:
            waiting = (*self.scope.waiting, Waiting(len(curve), curve[-1]))
            self.scope = replace(self.scope, waiting=waiting)

    def static_rates(self) -> StaticRates | None:
        """As measured in this run, else as given."""
        return self._times.rates(self.static)

    def _time(self, running: _Running, step: int, seconds: float) -> None:
        if step == 0:
            self._times.add_prefill(seconds)
        for passed in range(running.steps, step):
            each = (seconds - running.seconds) / (step - running.steps)
            self._times.add_step(self.scope.prompt + passed + 1, each)
        running.steps, running.seconds = step, seconds

    def _decide(self, looked_at: Running | None) -> Decision | None:
        """The plan as of now; None while there is no rate to price it with."""
        static = self.static_rates()
        if static is None:
            return None
        vllm = self.vllm or VllmRates.assumed(static, self.device, self.scope.mean_prompt)
        seen = self._seen.plus(self.earlier)
        begun, fresh = [], 0
        for running in tuple(self._running.values()):  # `end` comes from another thread than `look`
            seen.add_curve(running.rows, running.curve)
            if not running.curve:
                fresh += running.rows
            elif running.curve[-1]:
                begun.append(Running(len(running.curve) - 1, running.curve[-1]))
        scope = replace(self.scope, running=tuple(begun), rows_to_come=self.scope.rows_to_come + fresh)
        rules = Rules(static=static, vllm=vllm, least_gain=self.least_gain)
        decision = decide(scope, survival(seen), rules, looked_at)
        self._note(decision)
        return decision

    def _note(self, decision: Decision) -> None:
        """Keep the first decision, every change of plan, and of equal plans in a row the latest."""
        if len(self.decisions) > 1 and self._kind(self.decisions[-1]) == self._kind(decision):
            self.decisions.pop()
        self.decisions.append(decision)

    def _kind(self, decision: Decision) -> tuple[bool, bool]:
        return decision.rest_to_vllm, decision.hand_over_at < self.scope.cap


@dataclass
class _Running:
    """A batch under way, as last seen."""

    rows: int
    curve: tuple[int, ...] = ()
    steps: int = 0
    seconds: float = 0.0
    decide_at: int = 0
