"""What training stops for, whichever recording tells it: of the whole run, else of the judged steps."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import msgspec

from profilerkit.analysis.host.lines import HotLine, phase_place
from profilerkit.analysis.steps.series import Stall
from profilerkit.analysis.steps.wall_clock import Pause
from profilerkit.rules.api import STEP_LENGTHS, Evidence, Facts, Source, revise
from profilerkit.rules.evidence import line_evidence
from profilerkit.units import format_about, format_ratio

#: A stall without a name is the evaluation that was inferred when each takes about as long: within this factor.
_ALIKE = 2.0
#: Less of the time, and what recurs in a loop without a loader may as well be logging (a choice: rollouts of three PPO
#: programs took 53 to 67 %, pictures for a log 10 %). Of every second optimizer step or rarer.
_LEAST_ROLLOUT, _FEWEST_APART = 0.2, 2
#: A rollout asks a model what to do: looks at less of a stop are chance, or a checkpoint that lists a model's tensors
#: (a choice).
_LEAST_MODEL = 0.1
#: What a stop is known by, and how its evidence calls that.
KnownBy = Literal["name", "passes", "length"]
_ORIGINS: dict[KnownBy, str] = {
    "name": "named phase",
    "passes": "passes that train nothing",
    "length": "length of the steps",
}
_RECORDED = "the recorded steps"
_PART = {"checkpoint": "other.ckpt", "evaluation": "other.eval", "logging": "other.log"}


class Stop(msgspec.Struct, frozen=True):
    """Something that training stops for."""

    kind: str
    count: int
    each_ns: float
    share: float
    steps_apart: float | None  #: steps from one to the next; ``None`` when irregular, or not known
    source: Source
    #: A name that the program gives it, passes over data that train nothing, or the length of the steps.
    known_by: KnownBy
    spread_over: tuple[str, int]  #: what ``share`` is a share of, in words, and how many steps that is
    steps: tuple[int, int] | None = None  #: first and last affected step; ``None`` when not known
    stall: Stall | None = None  #: what the judged steps tell of it; ``None`` where only the record of the run does
    run_count: int | None = None  #: how often in the whole run; ``None`` where only the judged steps tell
    batches: float | None = None  #: as of ``Pause``, and ``records_graphs`` too
    records_graphs: bool = False
    line: HotLine | None = None  #: of the user's that holds most of it; ``None`` where sampled stacks do not tell

    @property
    def how_often(self) -> str:
        """Return how often, in words."""
        if self.steps_apart is not None and round(self.steps_apart) == 1:
            return "in every step"
        if self.steps_apart is not None:
            return f"every {format_about(self.steps_apart)} steps"
        told = "once" if self.count == 1 else f"{self.count} times"
        return f"{told} among steps, {self.run_count} in the run" if self._has_others else told

    @property
    def _has_others(self) -> bool:
        """Return whether the run has more than it is told of; a distance says nothing of how many there are."""
        return self.steps_apart is None and self.run_count is not None and self.run_count > self.count

    def is_rollout(self, facts: Facts) -> bool:
        """Return whether it likely makes the data to train on: no name, recurs, is long, runs a model, and no loader.

        Batches that the loop makes itself, in each step, do not recur; logging takes less, a checkpoint runs no model.
        """
        recurs = self.kind == "unnamed" and (self.steps_apart or 0.0) >= _FEWEST_APART
        model = facts.lines.get("model")
        runs_model = model is not None and model.share >= _LEAST_MODEL
        return recurs and runs_model and facts.input is None and self.share >= _LEAST_ROLLOUT

    def spread(self, facts: Facts) -> str:
        """Its share of the time, as a sentence: of the recorded steps that may be another one than of the judged."""
        over, steps = self.spread_over
        told = f"all {steps:,} recorded steps, not only the {facts.steps.steady:,} judged ones,"
        wide = over == _RECORDED and steps != facts.steps.steady
        alone = " What came before the first of them, or after the last, is not in it." if self._has_others else ""
        return f"Spread over {told if wide else 'all steps'} that is {format_ratio(self.share)} of the time.{alone}"

    def lost(self, facts: Facts) -> float:
        """Share of the time that training loses by it: of what a device works through the rest, where that is known."""
        part = self._part
        known = facts.share(part) if part is not None and facts.on_device and self.known_by == "name" else 0.0
        return min(self.share, known) if known else self.share

    @property
    def _part(self) -> str | None:
        return _PART.get(self.kind) or (self.stall.part if self.stall else None)

    @property
    def _behind(self) -> tuple[str, ...]:
        """Return what was named has a part of the step, what was not is known by the length of the steps."""
        if self.known_by == "name" and self._part is not None:
            return (self._part,)
        return (STEP_LENGTHS,) if self.stall is not None else ()

    def evidence(self, facts: Facts, label: str) -> tuple[Evidence, ...]:
        """One occurrence, all of them together, and how far apart they are."""
        over, steps = self.spread_over
        apart = None if self.steps_apart is None else float(f"{self.steps_apart:.2g}")
        origin, row = _ORIGINS[self.known_by], partial(facts.evidence, source=self.source)
        each = row(f"{label}, time per occurrence", self.each_ns, "ns", origin, n=self.count)
        share = row(f"{label}, share of {over}", self.share, "ratio", "step timers", n=steps)
        return (
            revise(each, steps=self.steps, behind=self._behind),
            revise(share, behind=self._behind),
            row(f"{label}, steps from one to the next", apart, "count", origin, n=self.count),
            *line_evidence(facts, f"{label}, share", self.line),
        )


def stops(facts: Facts) -> tuple[Stop, ...]:
    """Return everything training stops for, largest share first.

    The record of the whole run goes before the judged steps: it also holds what nobody named.
    """
    whole = {pause.kind: pause for pause in facts.pauses}
    found = [_of_pause(pause, [stall for stall in facts.stalls if stall.kind == kind]) for kind, pause in whole.items()]
    inferred, others = [one for one in facts.pauses if one.inferred], [s for s in facts.stalls if s.kind not in whole]
    found += [_of_stall(facts, stall) for stall in others if not any(_same(stall, pause) for pause in inferred)]
    return tuple(sorted(found, key=lambda stop: -stop.share))


def _same(stall: Stall, pause: Pause) -> bool:
    """Return whether longer steps without a name are the evaluation that nobody named."""
    return stall.part is None and pause.each_ns / _ALIKE <= stall.excess_ns <= _ALIKE * pause.each_ns


def _of_pause(pause: Pause, stalls: Sequence[Stall]) -> Stop:
    told = max(stalls, key=lambda stall: stall.share, default=None)
    return Stop(
        kind=pause.kind,
        count=pause.count,
        each_ns=pause.each_ns,
        share=pause.share,
        steps_apart=pause.steps_apart,
        source="derived" if pause.inferred else "measured",
        known_by="passes" if pause.inferred else "name",
        spread_over=(_RECORDED, pause.steps),
        steps=told.steps if told else None,
        stall=told,
        run_count=pause.run_count,
        batches=pause.batches,
        records_graphs=pause.records_graphs,
        line=pause.line,
    )


def _of_stall(facts: Facts, stall: Stall) -> Stop:
    first_unnamed = next((other for other in facts.stalls if other.part is None), None)
    return Stop(
        kind=stall.kind,
        count=stall.count,
        each_ns=stall.excess_ns,
        share=stall.share,
        steps_apart=stall.period,
        source=stall.source,
        known_by="name" if stall.part else "length",
        spread_over=("the steady time", facts.steps.steady),
        steps=stall.steps,
        stall=stall,
        line=facts.lines.get("unnamed" if stall.part is None else phase_place(stall.kind))
        if stall.part is not None or stall == first_unnamed
        else None,
    )
