"""RU003: too few steps are steady, or what is there is cold."""

from profilerkit.model.finding import STEP_LENGTHS, Evidence, Finding
from profilerkit.model.step import WHOLE_TRACE
from profilerkit.rules.api import STEPS_FOR_HIGH, Facts, Fired, MissingData, Passed, Rule, finding_for, used_steps
from profilerkit.units import format_ratio


class UnsteadyWindow(Rule, frozen=True):
    """Find recordings with fewer than {fewest_steps} steady steps, or {cold_share} of first-use work.

    Why it costs: Warm-up and compilation look like bottlenecks that the run does not have.

    Example:
        $ profilerkit run --trace-steps 3 -- train.py
    Use instead:
        $ profilerkit run --trace-steps 20 -- train.py
    How it is measured: Steps that warm up, compile or are cut off are dropped, and the rest are counted. First-use
        calls such as cudaFree and module loading are summed. No saving is given: it is a guard.
    When it is wrong: A curriculum of sequence lengths changes the step on purpose. Few steps still give a verdict, with
        less confidence.
    """

    code = "RU003"
    summary = "Too few steps are steady, or the recording is a cold start"
    of_any_framework = True

    fewest_steps: int = STEPS_FOR_HIGH
    cold_share: float = 0.25

    def check(self, facts: Facts) -> Fired | MissingData | Passed:
        if facts.steps.time_ns is None:
            return MissingData("no step was found", "call prof.step(), or profiler.step() when tracing by hand")
        findings = [*self._cold(facts), *self._short(facts)]
        if findings:
            return Fired(tuple(findings))
        return Passed(f"{facts.steps.steady} of {facts.steps.count} steps are steady")

    def _cold(self, facts: Facts) -> list[Finding]:
        if facts.cold is None or facts.cold.share < self.cold_share:
            return []
        share, origin = facts.cold.share, "the calls below, and others like them"
        evidence = [Evidence("First-use work, share of the window", share, "ratio", "derived", origin)]
        for name, duration in facts.cold.calls:
            origin = "slow launches, which load modules lazily" if "Launch" in name else "slow runtime calls"
            evidence.append(Evidence(name, duration, "ns", "measured", origin))
        title = f"First-use work takes {format_ratio(share)} of the window"
        why = "Modules are loaded, memory is set up and graphs are captured once; later steps do without."
        return [finding_for(facts, bound=None, title=title, why=why, evidence=tuple(evidence), at_most="high")]

    def _short(self, facts: Facts) -> list[Finding]:
        if facts.steps.steady >= self.fewest_steps:
            return []
        steady, count = facts.steps.steady, facts.steps.count
        title, used = f"Only {steady} step{'s were' if steady != 1 else ' was'} recorded", used_steps(facts)
        if facts.steps.found_by == WHOLE_TRACE:
            title, used = "Nothing marks a step in the recording", "Set-up and all steps are judged as one"
        elif count > steady:
            title = f"Only {steady} of {count} recorded steps {'are' if steady != 1 else 'is'} steady"
        row = Evidence("Steady steps", steady, "count", "measured", facts.steps.found_by, behind=(STEP_LENGTHS,))
        why = f"Confidence is capped below {self.fewest_steps} steps, because one odd step moves every share."
        why = f"{used}. {why}"
        return [finding_for(facts, bound=None, title=title, why=why, evidence=(row,), at_most="high")]
