"""OV007 (R52): the profiler changes what it measures."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.model.change import revise
from profilerkit.model.finding import Evidence, Finding, Fix
from profilerkit.rules.recording import recording_share, slowed_by
from profilerkit.rules.rule import Fired, MissingData, Passed, Result, Rule, each, finding_for, share_evidence
from profilerkit.units import format_ns, format_ratio


@dataclass(frozen=True)
class HeavyProfiler(Rule):
    """The profiler is the bottleneck (R52).

    Claim: The measurement distorts the run, so that what the host does looks longer than it is.
    Evidence: Traced step over untraced step; share of the profiler's own work; how many events were recorded of the
        host, and what recording them takes at least, by measured times of each kind of event.
    Threshold: Traced steps 10 % longer, or 2 % of the step in the profiler's own work. Without untraced steps, Python
        stacks, memory or emit_nvtx recorded. Without a trace: another profiler was active when one was to be recorded.
    Fix: None for the training. Trace fewer steps, without with_stack and profile_memory; time steps without a trace.
        Another profiler is switched off, or traces some steps by a schedule.
    Saving: None: this is a guard. It takes the time of recording off the savings of the host's time, and their low end.
    Traps: Where untraced steps were timed, their length is used and only the composition comes from the trace.
    Confidence: High with untraced steps, else low.
    """

    code: ClassVar[str] = "OV007"
    name: ClassVar[str] = "heavy_profiler"
    family: ClassVar[str] = "overhead"
    summary: ClassVar[str] = "The profiler changes what it measures"

    inflation_ratio: float = 1.10
    own_share: float = 0.02

    def check(self, facts: Facts) -> Result:
        """Fires when the trace is not like the run."""
        if not facts.trace_read:
            if facts.trust.has_rival:
                return Fired((_rival(facts),))
            return MissingData("no steps were traced", "profilerkit.profile(..., deep=True)")
        ratio, own = facts.trust.inflation_ratio, facts.share("other.prof")
        options = " and ".join(slowed_by(facts))
        if ratio is not None and ratio > self.inflation_ratio:
            title = f"Traced steps took {ratio:.2f} × the time of the others"
        elif own > self.own_share:
            title = f"The profiler's own work takes {format_ratio(own)} of the traced steps"
        elif options:
            title = f"Recorded with {options}, which slows the host by {_slowed_by(facts)}"
        elif ratio is None:
            return MissingData(
                "how long a step takes without the profiler is not known",
                "run the loop under profilerkit.profile(...), which also times steps without a trace",
            )
        else:
            return Passed(f"traced steps took {ratio:.2f} × the time of the others")
        finding = finding_for(
            facts,
            bound=None,
            title=title,
            why="The profiler adds time to every operator on the host and none to the device: overhead looks larger "
            "than it is, and the device less busy.",
            evidence=(
                *(
                    (
                        Evidence(
                            label="Traced step over untraced step",
                            value=ratio,
                            unit="ratio",
                            source="measured",
                            origin="step timers",
                            n=facts.steps.steady,
                            rank=facts.rank.rank,
                        ),
                    )
                    if ratio is not None
                    else ()
                ),
                share_evidence(facts, "The profiler's own work, share of the step", "other.prof"),
                *_recorded(facts),
            ),
            at_most="low" if ratio is None and own <= self.own_share else "high",
            confirm="Trace fewer steps, without with_stack and profile_memory; the ratio must fall below 1.1.",
        )
        return Fired((finding,))


def _slowed_by(facts: Facts) -> str:
    found = facts.host.recording
    if found is None or not found.events:
        return "an unknown amount"
    return f"{format_ns(found.waited_ns + found.hidden_ns)} of {each(facts)} step or more"


def _recorded(facts: Facts) -> tuple[Evidence, ...]:
    """How many events were recorded of the host and what that takes, where nothing else tells."""
    found = facts.host.recording
    if found is None or not found.events or not slowed_by(facts):
        return ()
    events = Evidence(
        label="Operators, Python calls and allocations recorded, per step",
        value=round(found.events),
        unit="count",
        source="measured",
        origin="events of the threads that train",
        n=facts.steps.steady,
        rank=facts.rank.rank,
    )
    whole = revise(
        events, label="Recording them, at least", value=found.waited_ns + found.hidden_ns, unit="ns", source="estimated"
    )
    waits_ns = recording_share(facts) * (facts.mean_step_ns or 0.0)
    return events, whole, revise(whole, label="Of it while the device waits, at least", value=waits_ns)


def _rival(facts: Facts) -> Finding:
    """What another profiler costs is not known, as no step was seen without it."""
    return finding_for(
        facts,
        bound=None,
        title="Another profiler is on in the training, and slows every operator on the host",
        why="It was active when a trace was to be recorded. Sessions of torch.profiler cannot be nested, so this run "
        "has none, and its step times hold what the other one costs.",
        evidence=(
            Evidence(
                label="Mean step, with the other profiler on",
                value=facts.mean_step_ns,
                unit="ns",
                source="measured",
                origin="step timers",
                n=facts.steps.steady,
                rank=facts.rank.rank,
            ),
        ),
        at_most="high",
        fix=Fix(
            text="Switch it off, or let it trace some steps only.",
            code="torch.profiler.profile(schedule=torch.profiler.schedule(wait=100, warmup=2, active=3, repeat=1))",
        ),
        confirm="Without it the step must be shorter, and this run gets a trace.",
    )
