"""Findings to one verdict: what bounds the run, how sure, what it says, and why not the others."""

import math
from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import relative_error, unnamed_pauses
from profilerkit.analysis.workers.capacity import BUSY
from profilerkit.diagnosis import savings
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
from profilerkit.model import revise
from profilerkit.model.finding import Bound, Confidence, Outcome
from profilerkit.model.step import PAUSES, UNSPLIT, WHOLE_TRACE
from profilerkit.model.verdict import BOUND_FAMILY, RECORD, RULE_LETTERS, RuledOut, Verdict
from profilerkit.rules.api import ENOUGH_STEPS, confidence, each, is_mean, judged, record_enough, weakest
from profilerkit.rules.calibrated import slowed_by
from profilerkit.rules.comm.exposed_collectives import undivided
from profilerkit.rules.comm.late_rank import LateRank
from profilerkit.rules.comm.transfers import is_likely, late_rank, longer, waits_at_most, waits_for, who, whole_job
from profilerkit.rules.compute.fp32_matmul import Fp32Matmul
from profilerkit.rules.parts import held_ns, shortened
from profilerkit.units import format_ns, format_ratio, format_saving

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


def ruled_out(facts: Facts, outcomes: Sequence[Outcome], bound: Bound, best: savings.Best | None) -> RuledOut:
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
    elif share >= savings.CONTENDER_SAVING:
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


_ALL = 0.95  #: a measured time that is less than this of what the fix saves does not tell what is lost (rounding aside)
_MOST = 0.5  #: share of the step from which what a rule is about holds most of it
#: What a family is called where it takes more of the step than the bound does.
_FAMILY_WORDS: dict[Bound, str] = {
    "input-bound": "Input",
    "memory-bound": "Memory traffic",
    "comm-bound": "Communication",
    "overhead-bound": "The host's own work",
    "compute-bound": "Computing",
}


def mean_step(facts: Facts) -> str:
    """Return the mean step as text."""
    return format_ns(facts.mean_step_ns or 0.0)


def headline(facts: Facts, top: savings.Best) -> str:
    """Return who loses how much of what to what, in at most 14 words: what was measured of the finding's parts."""
    uneven, mean_ns = is_mean(facts), facts.mean_step_ns or 0.0
    loser, held, step = who(facts), held_ns(facts, top.rule), each(facts, mean_step(facts))
    match top.bound, top.finding.detail:
        case "compute-bound", "imbalance" | "slower" as detail:
            more = longer(facts, format_ns((facts.waiting_share or 0.0) * mean_ns))
            if detail == "slower":
                return f"{loser} takes {more} longer for the same work in {step}"
            return f"{loser} computes {more} longer than {'others' if uneven else 'the others'} in {step}"
        case "compute-bound", "precision":
            wide = format_ns((top.finding.evidence[0].value or 0.0) * mean_ns)
            math = "32-bit math" if facts.math is not None and facts.math.wide else "in FP32"
            return f"{loser} computes {math} for {wide} of {step}"
        case "memory-bound", detail if detail != "capacity" and facts.share("compute.membw"):
            return f"{loser} moves memory for {format_ns(facts.time_ns('compute.membw'))} of {step}"
        case "comm-bound", _:
            # Transfer is nobody's own: a rank that is late as well does not cause it.
            loser = whole_job(facts)
    words = _words(facts, top, uneven=uneven)
    # Where a fix saves more than that, as the replay knows of syncs, its title says more.
    is_all = held > 0 and held >= _ALL * top.expected * mean_ns
    return f"{loser} {words[0]} {format_ns(held)} of {step} {words[1]}" if words and is_all else top.finding.title


def _words(facts: Facts, top: savings.Best, *, uneven: bool) -> tuple[str, str] | None:
    """Return what is done in the measured time, before and after it; ``None`` where the finding's title says more."""
    own, on_device = shortened(facts, top.rule), facts.mode == "gpu"
    match top.bound, top.finding.detail:
        case "input-bound", "h2d":
            return "spends", "on batch copies"
        case "input-bound", _:
            return "waits", "for data"
        case "comm-bound", detail if detail not in ("bubble", "contention", "engine"):
            return "spends", "on exposed communication"
        case "memory-bound", _ if "mem.alloc" in own:
            return "waits", "for memory allocation"
        case "overhead-bound", "sync":
            return "loses", "after host syncs"
        case "overhead-bound", "python" if "over.python" in own:
            return ("idles", "while Python runs") if on_device else ("spends", "in Python")
        case "overhead-bound", "contention":
            return "idles", "after launching kernels" if uneven else "after kernels were launched"
        case "overhead-bound", "launch" if on_device:
            return "idles", "while issuing work" if uneven else "while work is issued"
        case "overhead-bound", "launch":
            return "spends", "on calling small operators"
    return None


def consequence(facts: Facts, outcomes: Sequence[Outcome], verdict: Verdict, best: savings.Best | None) -> str:
    """Return what the best fix saves, and what the reader must know of the recording."""
    fired = sum(outcome.status == "fired" for outcome in outcomes)
    blind = sum(outcome.status in ("missing_data", "error") for outcome in outcomes)
    if facts.logs is not None and facts.logs.alone:
        return f"{verdict.refuted_by} {fired} of {len(outcomes)} rules fired; {blind} could not run."
    sentences = []
    if facts.taken:
        waited = format_ratio(facts.taken)
        sentences.append(f"This machine is busy: {waited} of the recorded step waits for a processor, left out here.")
    known = savings.best_per_bound(outcomes, suppressed=True).get(verdict.bound)
    if known is not None and known.aside is not None:
        # The reason stands above it: every report names what is suppressed, and why, largest saving first.
        sentences.append(f"Its finding {known.aside.rule} is suppressed.")
    if verdict.bound == "inconclusive" or verdict.detail == "likely" or verdict.command:
        sentences.append(verdict.refuted_by)
    elif verdict.saving is not None and verdict.bound == "balanced":
        expected, most = format_ratio(verdict.saving.expected), format_ratio(verdict.saving.most)
        sentences.append(f"The best one is expected to save {expected} of it, at most {most}.")
    elif (found := verdict.saving) is not None:
        saved = format_saving(found.low, found.expected, found.high, found.method)
        is_bound = found.method == "bound"
        by_a_fix = is_bound or best is None or best.finding.fix is not None or best.saving != found
        whole = f"The best fix saves {saved} of {judged(facts)}."
        if best is not None and best.fixes > 1:
            whole, by_a_fix = f"Its {best.fixes} fixes together save {saved} of {judged(facts)}.", True
        sentences.append(whole if by_a_fix else f"Without it a step is {saved} shorter.")
        if is_bound and verdict.bound == "comm-bound" and undivided(facts) and not waits_at_most(facts):
            sentences.append("Waiting for another rank and transfer look the same here.")
    elif verdict.bound != "balanced" and facts.framework is None:
        sentences.append(_without_saving(facts, outcomes))
    sentences += _larger_share(facts, outcomes, verdict)
    if verdict.bound != "inconclusive" and facts.steps.steady < 8:
        plural = "s" if facts.steps.steady != 1 else ""
        only = f"Only {facts.steps.steady} steady step{plural}."
        sentences.append("Nothing marks a step in it." if facts.steps.found_by == WHOLE_TRACE else only)
    late = waits_for(facts)
    sentences += late
    if facts.missing_ranks:
        verb = "is" if facts.missing_ranks == 1 else "are"
        sentences.append(f"{facts.missing_ranks} of {facts.world_size} ranks {verb} missing.")
    if not late:  # all doubts stand among what the report can be trusted for; the first screen is short
        sentences += [doubt.words for doubt in facts.doubts[:1] if doubt.words != verdict.refuted_by]
    sentences.append(f"{fired} of {len(outcomes)} rules fired; {blind} could not run.")
    return " ".join(sentences)


def _larger_share(facts: Facts, outcomes: Sequence[Outcome], verdict: Verdict) -> list[str]:
    """Why a family that takes more of the step than the bound's own is not the bound: savings decide, not shares."""
    if verdict.share is None or verdict.bound not in BOUND_FAMILY:
        return []
    own = (verdict.bound, *(() if verdict.bound == "memory-bound" else ("compute-bound",)))
    shares = {bound: facts.family(family) for bound, family in BOUND_FAMILY.items() if bound not in own}
    bound = max(shares, key=lambda name: shares[name])
    share = shares[bound]
    if share <= verdict.share:
        return []
    best = savings.best_per_bound(outcomes).get(bound)
    if best is not None:
        why = f"its best fix is expected to save {format_ratio(best.expected)}"
    else:
        why = "that is the work itself" if bound == "compute-bound" else "no fix for it was found"
    pauses = " with pauses" if holds_pauses(facts, bound) else ""
    than = f"{_FAMILY_WORDS[verdict.bound].lower()} {format_ratio(verdict.share)}"
    return [f"{_FAMILY_WORDS[bound]}{pauses} takes a larger share ({format_ratio(share)}, {than}), but {why}."]


def _without_saving(facts: Facts, outcomes: Sequence[Outcome]) -> str:
    """Return what the fixes of other bounds save where the verdict's own has none, or none that was not set aside."""
    aside = "Suppressed findings aside, " if savings.most_suppressed(outcomes) >= savings.CONTENDER_SAVING else ""
    known = [entry for entry in savings.best_per_bound(outcomes).values() if entry.finding.fix is not None]
    most = max((entry.expected for entry in known), default=0.0)
    lacks_data = any(row.rule == Fp32Matmul.code and row.status == "missing_data" for row in outcomes)
    if most >= savings.CONTENDER_SAVING:
        said = f"the best fix is expected to save {format_ratio(most)} of {judged(facts)}."
    elif any(finding.saving is None and finding.fix and finding.bound for row in outcomes for finding in row.findings):
        said = "the fixes named here could not be priced."
    elif facts.math is not None and facts.math.wide_share >= _MOST and lacks_data:
        said = "the saving of a lower precision is not known."
    else:
        said = f"no fix that is known here reaches 5 % of {judged(facts)}."
    return f"{aside}{said}" if aside else f"{said[0].upper()}{said[1:]}"


NAMED_SAVING = 0.10  #: a bound is named from this expected saving
MOST_OF_THE_STEP = 0.5  #: share of the step that compute kernels must own to call a run without savings compute-bound
#: Fewer timed steps than this, without a trace, name only what holds most of the step: the first steps of a run hold
#: what happens once, and what is alike in four steps is alike by chance in 6 % of runs (sign test; five: 3 %).
FEWEST_TIMED = 5
#: More of the step than this unexplained, or in one part that no rule priced, and no verdict has high confidence.
NOTED_UNPRICED = 0.10
#: A fix of these is one of the kernels, which own the step all the same.
_OF_KERNELS: set[Bound] = {"compute-bound", "memory-bound"}
NOISY_STEPS = 0.05  #: relative standard error of the step time above which silence of the rules means noise, not health


def diagnose(facts: Facts, outcomes: Sequence[Outcome]) -> Verdict:
    """Rank bounds by expected saving, never by share; refuse only where nothing can be named.

    What was suppressed bounds the run all the same: set aside are its saving and its fix, not the fact. Where much of
    the step is unexplained, the bound that is named is likely, and no more.
    """
    logs = facts.logs if facts.logs is not None and facts.logs.alone else None
    refused = verdict_on_dumps(facts, outcomes) if facts.by_dumps else refusal(facts) if logs is None else None
    if logs is not None:
        refused = verdict_on_logs(logs, facts, outcomes)
    best = {} if refused is not None else savings.joined(facts, outcomes, savings.best_per_bound(outcomes))
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


def _found(facts: Facts, outcomes: Sequence[Outcome], best: dict[Bound, savings.Best]) -> Verdict:
    """Return the verdict of a recording that can settle one; ``best`` is of the findings that were not set aside."""
    with_aside = savings.best_per_bound(outcomes, suppressed=True)
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
        return revise(verdict, saving=savings.best_fix(outcomes, own) if own else None)
    return _unnamed(facts, _ranked(best), outcomes)


def _ranked(best: dict[Bound, savings.Best]) -> list[savings.Best]:
    return sorted(best.values(), key=lambda entry: -entry.expected)


def _named(facts: Facts, top: savings.Best, others: Sequence[savings.Best], best: dict[Bound, savings.Best]) -> Verdict:
    """Return the bound of ``top``; contenders are those among ``best``, the findings that were not set aside."""
    share = facts.family(BOUND_FAMILY[top.bound])
    second = others[0].expected if others else 0.0
    left = [entry for entry in _ranked(best) if entry.bound != top.bound]
    sure: Confidence = "high" if top.expected >= 1.5 * second else "medium"
    contenders = tuple(entry.bound for entry in left if entry.expected >= savings.CONTENDER_SAVING)
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


def _unnamed(facts: Facts, ranked: Sequence[savings.Best], outcomes: Sequence[Outcome]) -> Verdict:
    """No saving reaches 10 %: the kernels, if they own the step and no saving reaches 5 %; else balanced."""
    contenders = tuple(entry.bound for entry in ranked if entry.expected >= savings.CONTENDER_SAVING)
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
    unpriced, share = savings.largest_unpriced(facts, savings.priced_parts(outcomes))
    if share >= LARGEST_UNPRICED:
        return unpriced_verdict(facts, unpriced, share)
    leading = next((entry for entry in ranked if _lost(facts, entry.bound) >= MOST_OF_THE_STEP), None)
    if leading is not None:
        # A fix that saves little leaves the rest of it where it is.
        return revise(_named(facts, leading, (), {}), confidence="low", contenders=contenders)
    is_doubted = share >= NOTED_UNPRICED or facts.mode != "gpu"
    sure: Confidence = "medium" if is_doubted else "high"
    of_kernels = all(bound in _OF_KERNELS and _lost(facts, bound) < savings.CONTENDER_SAVING for bound in contenders)
    # On a busy machine such a saving comes and goes from one recording to the next.
    if (of_kernels or facts.taken >= BUSY) and facts.share("compute.") >= MOST_OF_THE_STEP:
        own = _kernels_own_it(facts, confidence(facts, sure))
        left = tuple(bound for bound in contenders if bound != own.bound)
        return revise(own, contenders=left, saving=ranked[0].saving if contenders else None)
    limit = "10 %" if contenders else "5 %"
    is_aside = savings.most_suppressed(outcomes) >= savings.CONTENDER_SAVING
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
        # The device works, and what it works on nobody saw: of several ranks it may be transfers, or the waiting.
        if facts.share("idle.unknown") >= NOTED_UNPRICED:
            return inconclusive(*idle_without_trace(facts))
        said = f"{who(facts)} works for {format_ns(facts.time_ns('compute.'))} of {each(facts, mean_step(facts))}"
        settled_by = "A trace of some steps: it shows whether kernels compute, move memory or communicate."
        if (facts.world_size or 1) > 1:
            return inconclusive(said, settled_by)
        bound: Bound = "memory-bound" if _memory_is_busy(facts) else "compute-bound"
        return revise(likely(facts, bound, said, settled_by), detail="", confidence=weakest(sure, "medium"))
    largest = max(("math", "small", "other"), key=lambda kind: facts.share(f"compute.{kind}"))
    time = format_ns((moving if memory else kernels - moving) * (facts.mean_step_ns or 0.0))
    what = "moves memory" if memory else "computes"
    unseen = next((doubt.words for doubt in facts.doubts if doubt.kind == "unseen device"), "")
    kind = "bandwidth" if memory else {"math": "math", "small": "small kernels"}.get(largest, "")
    return Verdict(
        bound="memory-bound" if memory else "compute-bound",
        detail=kind,
        # Names tell the kind of a kernel, not the bytes it moved.
        confidence=weakest(sure, "medium") if memory else sure,
        headline=f"{who(facts)} {what} for {time} of {each(facts, mean_step(facts))}",
        share=facts.family("memory" if memory else "compute"),
        refuted_by=unseen or "A finding with an expected saving of 5 % or more.",
        command=RECORD if unseen else "",
    )


#: Of the time in which kernels run, memory is read or written for so much where moving it is all they do. On an H200 it
#: was 0.99 for pointwise kernels, 0.49 for a GPT, and up to 0.23 for products of matrices.
_BUSY_MEMORY = 0.8


def _memory_is_busy(facts: Facts) -> bool:
    """Whether NVML's samples say so, where nothing else tells kernels apart."""
    kernels, memory = facts.series("gpu.utilization"), facts.series("gpu.memory_utilization")
    return kernels is not None and memory is not None and memory.mean > _BUSY_MEMORY * kernels.mean > 0.0


def _its(facts: Facts) -> str:
    """Whose step it is: the late rank's, if there is one."""
    late = late_rank(facts)
    return "the" if late is None else f"rank {late}'s"
