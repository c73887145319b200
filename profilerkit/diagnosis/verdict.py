"""Findings to one verdict: what bounds the run, how sure, and why not the others."""

import math
from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.parts import UNSPLIT
from profilerkit.analysis.whatif import relative_error, unnamed_pauses
from profilerkit.analysis.workers.capacity import BUSY
from profilerkit.diagnosis.headline import consequence, headline, mean_step, ruled_out
from profilerkit.diagnosis.refusal import (
    LARGEST_UNPRICED,
    idle_without_trace,
    inconclusive,
    likely,
    refusal,
    shows_idle_device,
    unexplained_share,
    unexplained_verdict,
    unpriced_verdict,
    verdict_on_dumps,
    verdict_on_logs,
    what_to_record,
)
from profilerkit.diagnosis.savings import (
    CONTENDER_SAVING,
    Best,
    best_fix,
    best_per_bound,
    joined,
    largest_unpriced,
    most_suppressed,
    priced_parts,
)
from profilerkit.model.change import revise
from profilerkit.model.finding import Bound, Confidence, Outcome
from profilerkit.model.verdict import BOUND_FAMILY, Verdict
from profilerkit.rules.api import ENOUGH_STEPS, confidence, each, record_enough, weakest
from profilerkit.rules.calibrated import slowed_by
from profilerkit.rules.comm.late_rank import LateRank
from profilerkit.rules.comm.transfers import is_likely, late_rank, who
from profilerkit.units import format_ns, format_ratio

#: A bound is named from this expected saving.
NAMED_SAVING = 0.10
#: Share of the step that compute kernels must own to call a run without savings compute-bound.
MOST_OF_THE_STEP = 0.5
#: Fewer timed steps than this, without a trace, name only what holds most of the step: the first steps of a run hold
#: what happens once, and what is alike in four steps is alike by chance in 6 % of runs (sign test; five: 3 %).
FEWEST_TIMED = 5
#: More of the step than this unexplained, or in one part that no rule priced, and no verdict has high confidence.
NOTED_UNPRICED = 0.10
#: A fix of these is one of the kernels, which own the step all the same.
_OF_KERNELS: set[Bound] = {"compute-bound", "memory-bound"}
#: Relative standard error of the step time above which silence of the rules means noise, not health.
NOISY_STEPS = 0.05


def diagnose(facts: Facts, outcomes: Sequence[Outcome]) -> Verdict:
    """Rank bounds by expected saving, never by share; refuse only where nothing can be named.

    What was suppressed bounds the run all the same: set aside are its saving and its fix, not the fact. Where much of
    the step is unexplained, the bound that is named is likely, and no more.
    """
    logs = facts.logs if facts.logs is not None and facts.logs.alone else None
    refused = verdict_on_dumps(facts, outcomes) if facts.by_dumps else refusal(facts) if logs is None else None
    if logs is not None:
        refused = verdict_on_logs(logs, facts, outcomes)
    best = {} if refused is not None else joined(facts, outcomes, best_per_bound(outcomes))
    verdict = refused if refused is not None else _found(facts, outcomes, best)
    rank = None if verdict.bound == "comm-bound" else late_rank(facts)
    others = [bound for bound in BOUND_FAMILY if bound != verdict.bound and bound not in verdict.contenders]
    if verdict.bound == "inconclusive" or logs is not None:
        others = []
    return revise(
        verdict,
        rank=rank,
        confidence="low" if rank is not None and is_likely(facts) else verdict.confidence,
        ruled_out=tuple(ruled_out(facts, outcomes, bound, best.get(bound)) for bound in others),
        consequence=consequence(facts, outcomes, verdict, best.get(verdict.bound)),
    )


def _found(facts: Facts, outcomes: Sequence[Outcome], best: dict[Bound, Best]) -> Verdict:
    """Return the verdict of a recording that can settle one; ``best`` is of the findings that were not set aside."""
    with_aside = best_per_bound(outcomes, suppressed=True)
    more = {bound: entry for bound, entry in best.items() if entry.expected >= with_aside[bound].expected}
    known = _ranked(with_aside | more)
    most = known[0].expected if known else 0.0
    held = facts.family(BOUND_FAMILY[known[0].bound]) if known else 0.0
    unexplained = unexplained_share(facts)
    if not facts.trace_read and facts.steps.steady < FEWEST_TIMED and held < MOST_OF_THE_STEP:
        few = f"{facts.steps.steady} timed step{'s' if facts.steps.steady > 1 else ''}"
        return inconclusive(f"{few} cannot settle a bound", *what_to_record(facts))
    # Without a trace most of a step is bound to be unexplained; what the timers measured stands all the same.
    hidden = unexplained >= LARGEST_UNPRICED and (facts.trace_read or most < NAMED_SAVING)
    if hidden and (unexplained > most if shows_idle_device(facts) else most < NAMED_SAVING):
        return unexplained_verdict(facts)
    if most >= NAMED_SAVING:
        own = best.get(known[0].bound)
        verdict = _named(facts, known[0], known[1:], best)
        if hidden:
            helps, command = what_to_record(facts)
            verdict = revise(verdict, confidence="low", refuted_by=helps, command=command)
        return revise(verdict, saving=best_fix(outcomes, own) if own else None)
    return _unnamed(facts, _ranked(best), outcomes)


def _ranked(best: dict[Bound, Best]) -> list[Best]:
    return sorted(best.values(), key=lambda entry: -entry.expected)


def _named(facts: Facts, top: Best, others: Sequence[Best], best: dict[Bound, Best]) -> Verdict:
    """Return the bound of ``top``; contenders are those among ``best``, the findings that were not set aside."""
    share = facts.family(BOUND_FAMILY[top.bound])
    second = others[0].expected if others else 0.0
    left = [entry for entry in _ranked(best) if entry.bound != top.bound]
    sure: Confidence = "high" if top.expected >= 1.5 * second else "medium"
    contenders = tuple(entry.bound for entry in left if entry.expected >= CONTENDER_SAVING)
    in_doubt = top.bound == "overhead-bound" and slowed_by(facts) and facts.share("compute.") >= top.expected
    return Verdict(
        bound=top.bound,
        detail=top.finding.detail,
        confidence=weakest(top.finding.confidence, sure),
        headline=headline(facts, top),
        share=share,
        saving=top.saving,
        contenders=(*contenders, "compute-bound") if in_doubt and "compute-bound" not in contenders else contenders,
        refuted_by=top.finding.confirm,
    )


def _unnamed(facts: Facts, ranked: Sequence[Best], outcomes: Sequence[Outcome]) -> Verdict:
    """No saving reaches 10 %: the kernels, if they own the step and no saving reaches 5 %; else balanced.

    The headline does not deny the savings of findings that were set aside.
    """
    contenders = tuple(entry.bound for entry in ranked if entry.expected >= CONTENDER_SAVING)
    late = next((entry for entry in ranked if entry.rule == LateRank.code), None)
    if late is not None and (facts.waiting_share or 0.0) >= NAMED_SAVING:
        # Evening out saves a part of what the others wait: what they wait for is known all the same.
        others = tuple(bound for bound in contenders if bound != late.bound)
        return revise(_named(facts, late, ranked[:1], {}), contenders=others)
    # Before what no rule prices: among such steps a rule that could price it keeps silent as well.
    largest = max(BOUND_FAMILY, key=lambda bound: _lost(facts, bound))
    if not ranked and _lost(facts, largest) >= NAMED_SAVING and relative_error(facts) >= NOISY_STEPS:
        said = f"The {facts.steps.steady} steady steps differ too much to name a saving"
        # The error of the step time falls with the root of their number.
        needed = facts.steps.steady * (relative_error(facts) / NOISY_STEPS) ** 2
        more = math.ceil(needed / ENOUGH_STEPS) * ENOUGH_STEPS + ENOUGH_STEPS
        return likely(facts, largest, said, record_enough(facts, f"record about {more} like these"))
    unpriced, share = largest_unpriced(facts, priced_parts(outcomes))
    if share >= LARGEST_UNPRICED:
        return unpriced_verdict(facts, unpriced, share)
    leading = next((entry for entry in ranked if _lost(facts, entry.bound) >= MOST_OF_THE_STEP), None)
    if leading is not None:
        # A fix that saves little leaves the rest of it where it is.
        return revise(_named(facts, leading, (), {}), confidence="low", contenders=contenders)
    is_doubted = share >= NOTED_UNPRICED or facts.mode != "gpu"
    sure: Confidence = "medium" if is_doubted else "high"
    of_kernels = all(bound in _OF_KERNELS and _lost(facts, bound) < CONTENDER_SAVING for bound in contenders)
    # On a busy machine such a saving comes and goes from one recording to the next.
    if (of_kernels or facts.taken >= BUSY) and facts.share("compute.") >= MOST_OF_THE_STEP:
        own = _kernels_own_it(facts, confidence(facts, sure))
        left = tuple(bound for bound in contenders if bound != own.bound)
        return revise(own, contenders=left, saving=ranked[0].saving if contenders else None)
    limit = "10 %" if contenders else "5 %"
    is_aside = most_suppressed(outcomes) >= CONTENDER_SAVING
    none = "Suppressed findings aside, no fix saves" if is_aside else "No fix is known to save"
    said = f"{none} {limit} of {_its(facts)} {mean_step(facts)} step"
    refuted_by = "More steps: small causes need many to stand out."
    if (paused := unnamed_pauses(facts)) >= NOTED_UNPRICED:
        said += f"; a few slow steps take {format_ratio(paused)}"
        refuted_by = "Look at what the slow steps do that the others do not: the recording does not show it."
    if facts.framework:  # whose fixes nobody looked for
        said = f"No kind of work takes most of {_its(facts)} {mean_step(facts)} step"
    return Verdict(
        bound="balanced",
        confidence=confidence(facts, "medium"),
        headline=said,
        saving=ranked[0].saving if contenders else None,
        contenders=contenders,
        refuted_by=refuted_by,
    )


def _lost(facts: Facts, bound: Bound) -> float:
    """Return the share of the step that a family takes without computing."""
    if bound == "compute-bound":
        return 0.0
    return facts.share("mem.alloc") if bound == "memory-bound" else facts.family(BOUND_FAMILY[bound])


def _kernels_own_it(facts: Facts, sure: Confidence) -> Verdict:
    """Compute-bound, or memory-bound where most of the kernels are of the kind that moves memory."""
    kernels = facts.share("compute.")
    moving = facts.share("compute.membw")
    memory = moving > kernels - moving
    if facts.share(UNSPLIT) > kernels / 2:
        return _works_all_along(facts, weakest(sure, "medium"))
    largest = max(("math", "small", "other"), key=lambda kind: facts.share(f"compute.{kind}"))
    time = format_ns((moving if memory else kernels - moving) * (facts.mean_step_ns or 0.0))
    what = "moves memory" if memory else "computes"
    return Verdict(
        bound="memory-bound" if memory else "compute-bound",
        detail="bandwidth" if memory else {"math": "math", "small": "small kernels"}.get(largest, ""),
        # Names tell the kind of a kernel, not the bytes it moved.
        confidence=weakest(sure, "medium") if memory else sure,
        headline=f"{who(facts)} {what} for {time} of {each(facts, mean_step(facts))}",
        share=facts.family("memory" if memory else "compute"),
        refuted_by="A finding with an expected saving of 5 % or more.",
    )


def _works_all_along(facts: Facts, sure: Confidence) -> Verdict:
    """Compute-bound as far as a run without a trace tells: the device works, and what it works on nobody saw.

    Of several ranks that may as well be the transfers between them, or the waiting for a late one.
    """
    if facts.share("idle.unknown") >= NOTED_UNPRICED:
        return inconclusive(*idle_without_trace(facts))
    said = f"{who(facts)} works for {format_ns(facts.time_ns('compute.'))} of {each(facts, mean_step(facts))}"
    settled_by = "A trace of some steps: it shows whether kernels compute, move memory or communicate."
    if (facts.world_size or 1) > 1:
        return inconclusive(said, settled_by)
    return Verdict(
        bound="compute-bound",
        confidence=sure,
        headline=said,
        share=facts.family("compute"),
        refuted_by=settled_by,
    )


def _its(facts: Facts) -> str:
    """Whose step it is: the late rank's, if there is one."""
    late = late_rank(facts)
    return "the" if late is None else f"rank {late}'s"
