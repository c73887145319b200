"""Why the bounds that the verdict does not name are out."""

from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.parts import PAUSES
from profilerkit.diagnosis.best import CONTENDER_SAVING, Best
from profilerkit.model.finding import Bound, Outcome
from profilerkit.model.verdict import BOUND_FAMILY, RULE_LETTERS, RuledOut
from profilerkit.rules.rule import judged
from profilerkit.units import format_ratio

#: More of a saving than this beyond the share of its family is said, so that the two numbers do not seem to differ.
SHOWN_BEYOND = 0.005
#: What a family of parts does to the step, for the table of bounds that were ruled out.
_WORK: dict[Bound, str] = {
    "input-bound": "waiting for data takes",
    "memory-bound": "memory traffic and allocation take",
    "comm-bound": "exposed communication takes",
    "overhead-bound": "the host's own work takes",
    "compute-bound": "computation takes",
}
#: The same of the host where the run stands still for something else as well.
_WITH_PAUSES = "the host's own work with pauses takes"


def holds_pauses(facts: Facts, bound: Bound) -> bool:
    """Whether the share of the bound's family holds what the run stands still for, which is no work of its own."""
    return bound == "overhead-bound" and facts.share(*PAUSES) > 0


def ruled_out(facts: Facts, outcomes: Sequence[Outcome], bound: Bound, best: Best | None) -> RuledOut:
    """Return what speaks against ``bound``; ``best`` is its best finding, if it has one."""
    share = facts.family(BOUND_FAMILY[bound])
    takes = f"{_WITH_PAUSES if holds_pauses(facts, bound) else _WORK[bound]} {format_ratio(share)} of {judged(facts)}"
    if best is not None:
        reason = f"{takes}; the best fix is expected to save {format_ratio(best.expected)}"
        # A fix may also shorten what other families of parts hold: small kernels, waiting for a processor.
        if (beyond := best.expected - share) >= SHOWN_BEYOND:
            reason += f", of which at least {format_ratio(beyond)} of {judged(facts)} is in other parts"
        return RuledOut(bound=bound, share=share, saving=best.expected, reason=reason)
    if unseen := _unseen(facts, bound, share):
        return RuledOut(bound=bound, share=None, saving=None, reason=unseen, state="not measured")
    own = [outcome for outcome in outcomes if outcome.rule.startswith(RULE_LETTERS[bound])]
    off = sum(outcome.status == "off" for outcome in own)
    aside = [outcome.rule for outcome in outcomes for finding in outcome.suppressed if finding.bound == bound]
    if aside:
        reason = f"{takes}; what {', '.join(dict.fromkeys(aside))} found was suppressed"
    elif bound == "comm-bound" and facts.comm is None:
        reason = "no collective was seen"
    elif off:
        some = "" if off == len(own) else f"{off} of "
        reason = f"{takes}; {some}its rules {'was' if some and off == 1 else 'were'} switched off"
    elif share >= CONTENDER_SAVING:
        reason = f"{takes}; no fix for it was found"
    else:
        reason = takes
    return RuledOut(bound=bound, share=share, saving=None, reason=reason)


def _unseen(facts: Facts, bound: Bound, share: float) -> str:
    """Return why the recording does not say how much time the bound's family takes; empty when it does."""
    match bound:
        case "input-bound" if facts.input is None:
            return "no loader was seen, so its wait is not measured"
        case "overhead-bound" if facts.framework:
            return f"what the host does is not read from a profile of {facts.framework}"
        case "memory-bound" if facts.mode != "gpu":
            moving = facts.share("compute.membw")
            takes = f"operators of the kind that moves memory take {format_ratio(moving)} of {judged(facts)}; "
            return f"{takes if moving else ''}no device events, so memory traffic is not measured"
        case "comm-bound" if facts.comm is None and not facts.trace_read:
            flight = facts.communication.flight if facts.communication else None
            return "only a trace times collectives" if flight else "collectives are only seen in a trace"
        case "compute-bound" | "overhead-bound" if not facts.trace_read and not share:
            return "what the step computes and issues is only seen in a trace"
    return ""
