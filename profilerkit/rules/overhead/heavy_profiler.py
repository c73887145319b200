"""OV007: the profiler changes what it measures."""

from functools import partial

from profilerkit.rules.api import Evidence, Facts, Fix, MissingData, Passed, Result, Rule, each, fired
from profilerkit.rules.calibrated import recording_share, slowed_by
from profilerkit.units import format_ns, format_ratio


class HeavyProfiler(Rule, frozen=True):
    """Find traces whose steps are {inflation_ratio} times as long as untraced ones, or hold {own_share} profiler work.

    Why it costs: A slowed CPU makes overhead look larger than it is.

    Example:
        profiler = torch.profiler.profile(with_stack=True, profile_memory=True)
    Use instead:
        schedule = torch.profiler.schedule(wait=5, warmup=2, active=10, repeat=1)
        profiler = torch.profiler.profile(schedule=schedule)
    How it is measured: Traced and untraced steps are compared. Without untraced steps, recorded Python stacks, memory
        or emit_nvtx count, with the least cost of each recorded event. No saving is given: the rule lowers the savings
        of CPU time.
    When it is wrong: Where untraced steps were timed, their length is used and only the composition comes from the
        trace.
    Sources: https://docs.pytorch.org/docs/2.13/profiler.html
    """

    code = "OV007"
    summary = "The profiler changes what it measures"

    inflation_ratio: float = 1.10
    own_share: float = 0.02

    def check(self, facts: Facts) -> Result:
        if not facts.trace_read:
            if facts.has_rival:
                return _rival(facts)
            return MissingData("no steps were traced", "profilerkit.profile(..., deep=True)")
        ratio, own = facts.trust.inflation_ratio, facts.share("other.prof")
        options = " and ".join(slowed_by(facts))
        if ratio is not None and ratio > self.inflation_ratio:
            title = f"Traced steps took {ratio:.2f} × the time of the others"
        elif own > self.own_share:
            title = f"The profiler's own work takes {format_ratio(own)} of the traced steps"
        elif options:
            found, amount = facts.host.recording, "an unknown amount"
            if found is not None and found.events:
                amount = f"{format_ns(found.waited_ns + found.hidden_ns)} of {each(facts)} or more"
            title = f"Recorded with {options}, which slows the host by {amount}"
        elif ratio is None:
            hint = "run the loop under profilerkit.profile(...), which also times steps without a trace"
            return MissingData("how long a step takes without the profiler is not known", hint)
        else:
            return Passed(f"traced steps took {ratio:.2f} × the time of the others")
        return fired(
            facts,
            bound=None,
            title=title,
            why="The profiler adds time to every operator on the host and none to the device. Overhead looks "
            "larger than it is, and the device less busy.",
            evidence=(
                facts.evidence("Traced step over untraced step", ratio, "ratio", "step timers"),
                # No event shows it in a trace of the CPU alone: a share of 0 was not measured.
                *((facts.share_evidence("The profiler's own work, share of the step", "other.prof"),) if own else ()),
                *_recorded(facts),
            ),
            at_most="low" if ratio is None and own <= self.own_share else "high",
            confirm="Trace fewer steps, without with_stack and profile_memory; the ratio must fall below "
            f"{self.inflation_ratio:g}.",
        )


def _recorded(facts: Facts) -> tuple[Evidence, ...]:
    """Return how many events were recorded of the host and what that takes, where nothing else tells."""
    found = facts.host.recording
    if found is None or not found.events or not slowed_by(facts):
        return ()
    whole_ns, waits_ns = found.waited_ns + found.hidden_ns, recording_share(facts) * (facts.mean_step_ns or 0.0)
    row = partial(facts.evidence, origin="events of the threads that train")
    return (
        row("Operators, Python calls and allocations recorded, per step", round(found.events), "count"),
        row("Recording them, at least", whole_ns, "ns", source="estimated"),
        row("Recording while the device waits, at least", waits_ns, "ns", source="estimated"),
    )


def _rival(facts: Facts) -> Result:
    return fired(
        facts,
        bound=None,
        title="Another profiler is on in the training, and slows every operator on the host",
        why="It was active when a trace was to be recorded. Sessions of torch.profiler cannot be nested, so this run "
        "has none, and its step times hold what the other one costs.",
        evidence=(facts.evidence("Mean step, with the other profiler on", facts.mean_step_ns, "ns", "step timers"),),
        at_most="high",
        fix=Fix(
            text="Switch it off, or let it trace some steps only.",
            code="torch.profiler.profile(schedule=torch.profiler.schedule(wait=100, warmup=2, active=3, repeat=1))",
        ),
        confirm="Without it the step must be shorter, and this run gets a trace.",
    )
