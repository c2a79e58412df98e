"""The policy at work on one chunk: what was seen so far, what is left, and every decision that was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from staticjob.generating.survival import Observed, survival
from staticjob.policy import Decision, Rules, Running, Scope, Waiting, decide

Engine = Literal["auto", "static", "vllm"]
# Decode passes between two decisions of a batch: each costs a few milliseconds.
DECIDE_STEPS = 8


@dataclass
class TailPolicy:
    """Answers two questions of a chunk: may the next batch begin, and does this one hand over now?

    `scope` holds the whole chunk before its first batch; `earlier` what an earlier run saw of the lengths.
    """

    engine: Engine
    rules: Rules
    scope: Scope
    earlier: Observed | None = None
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen = Observed(self.scope.cap)
        self._running: dict[int, tuple[int, tuple[int, ...]]] = {}  # batch: its rows, its curve so far
        self._decided: dict[int, int] = {}  # batch: the step it was last decided at

    def begin(self, index: int, rows: int) -> bool:
        """Whether batch `index` of `rows` rows is run statically; if not, it and all after it go to vLLM."""
        begins = self.engine == "static" or (self.engine == "auto" and not self._decide(None).rest_to_vllm)
        if begins:
            self.scope = replace(self.scope, rows_to_come=self.scope.rows_to_come - rows)
            self._running[index] = (rows, ())
        return begins

    def look(self, index: int, step: int, curve: Sequence[int]) -> bool:
        """Whether batch `index` hands over after `step` decode passes.

        curve[i] of its rows went on after token i + 1; the last entry is now.
        """
        rows, _ = self._running[index]
        self._running[index] = (rows, tuple(curve))
        if self.engine != "auto" or step < self._decided.get(index, 0):
            return False
        self._decided[index] = step + DECIDE_STEPS
        return self._decide(Running(step, curve[-1])).hand_over_at <= step

    def end(self, index: int, curve: Sequence[int]) -> None:
        """Batch `index` has stopped; curve ends with the rows it left to vLLM, or 0."""
        rows, _ = self._running.pop(index)
        self._seen.add_curve(rows, curve)
        if curve[-1]:
            waiting = (*self.scope.waiting, Waiting(len(curve), curve[-1]))
            self.scope = replace(self.scope, waiting=waiting)

    def _decide(self, looked_at: Running | None) -> Decision:
        seen = self._seen.plus(self.earlier)
        for rows, curve in self._running.values():
            seen.add_curve(rows, curve)
        begun = [Running(len(curve) - 1, curve[-1]) for _, curve in self._running.values() if curve]
        fresh = sum(rows for rows, curve in self._running.values() if not curve)
        scope = replace(
            self.scope,
            running=tuple(batch for batch in begun if batch.active),
            rows_to_come=self.scope.rows_to_come + fresh,
        )
        decision = decide(scope, survival(seen), self.rules, looked_at)
        self._note(decision)
        return decision

    def _note(self, decision: Decision) -> None:
        """Keep the first decision and every change of plan, and of equal plans the latest."""
        if self.decisions:
            last = self.decisions[-1]
            same = last.rest_to_vllm == decision.rest_to_vllm and (
                (last.hand_over_at == self.scope.cap) == (decision.hand_over_at == self.scope.cap)
            )
            if same and len(self.decisions) > 1:
                self.decisions[-1] = decision
                return
        self.decisions.append(decision)
