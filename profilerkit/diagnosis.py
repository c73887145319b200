"""Findings to one verdict: what bounds the run, how sure, and why not the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.leaves import WAITS
from profilerkit.analysis.whatif import relative_error
from profilerkit.model.change import revise
from profilerkit.model.finding import Bound, Confidence, Finding, Outcome, Saving
from profilerkit.model.step import PARTS
from profilerkit.model.verdict import BOUND_FAMILY, RULE_LETTERS, RuledOut, Verdict
from profilerkit.rules.comm.exposed_collectives import to_divide, undivided
from profilerkit.rules.comm.whom import late_rank, longer, waits_for, who, whole_job, whose
from profilerkit.rules.overhead.frequent_sync import lost_share
from profilerkit.rules.rule import confidence, each, weakest
from profilerkit.units import format_ns, format_ratio, format_ratio_range

#: A bound is named from this expected saving (§1.8 of the diagnosis method); a contender from the second.
NAMED_SAVING = 0.10
CONTENDER_SAVING = 0.05
#: Share of the step that compute kernels must own to call a run without savings compute-bound.
MOST_OF_THE_STEP = 0.5
#: More of the step than this unexplained, or in one part that no rule priced, and there is no verdict; above the
#: second there is none with high confidence.
LARGEST_UNPRICED = 0.25
NOTED_UNPRICED = 0.10
#: Relative standard error of the step time above which silence of the rules means noise, not health.
NOISY_STEPS = 0.05

#: Where a stall's evidence comes from; its title, not the parts of the typical step, says what it costs.
_STALL_ORIGINS = ("named phase", "length of the steps")

#: The parts outside the kernels that the fix of each rule with a bound makes shorter.
_PARTS_OF_RULE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("IN001", "IN002", "IN003", "IN005", "IN006", "IN007", "IN008"), WAITS),
    "IN009": ("input.h2d",),
    "ME001": ("mem.alloc",),
    "CO001": ("comm.bw", "comm.lat", "comm.other"),
    "CO003": ("comm.skew",),
    "CP001": (),
    "CP004": (),
    "OV001": ("over.dispatch", "over.launch", "over.python"),
    "OV002": ("sync.drain", "sync.d2h"),
    "RU001": ("other.ckpt", "other.eval", "other.log", "other.phase", "other.stall"),
}

#: What a family of parts does to the step, for the table of bounds that were ruled out.
_WORK: dict[Bound, str] = {
    "input-bound": "waiting for data takes",
    "memory-bound": "memory traffic and allocation take",
    "comm-bound": "exposed communication takes",
    "overhead-bound": "the host's own work takes",
    "compute-bound": "computation takes",
}


@dataclass(frozen=True, slots=True)
class _Best:
    """The finding with the largest expected saving for one bound."""

    bound: Bound
    finding: Finding
    saving: Saving

    @property
    def expected(self) -> float:
        return self.saving.expected


def diagnose(facts: Facts, outcomes: Sequence[Outcome]) -> Verdict:
    """Rank bounds by expected saving, never by share; refuse where nothing steady was recorded."""
    best = _best_per_bound(outcomes)
    ranked = sorted(best.values(), key=lambda entry: -entry.expected)
    named = bool(ranked) and ranked[0].expected >= NAMED_SAVING
    # Without a trace most of a step is bound to be unexplained; what the timers measured stands all the same.
    refusal = _refusal(facts, unexplained=facts.trace_read or not named)
    if refusal is not None:
        return _with_scope(facts, outcomes, refusal, {})
    if named:
        return _with_scope(facts, outcomes, _named(facts, ranked[0], ranked[1:]), best)
    return _with_scope(facts, outcomes, _unnamed(facts, ranked, _priced(outcomes)), best)


def _inconclusive(headline: str, refuted_by: str) -> Verdict:
    return Verdict(bound="inconclusive", confidence="low", headline=headline, refuted_by=refuted_by)


def _refusal(facts: Facts, *, unexplained: bool) -> Verdict | None:
    """The inconclusive verdict, if the recording cannot carry another one; ``unexplained`` time may be the reason."""
    if facts.raised and not facts.steps.count:
        return _inconclusive("The run ended before its first step did", "Mend what ended it, and record again.")
    if facts.failure and not facts.steps.count:
        return _inconclusive("No step was recorded yet", "Wait for some steps, or look for what ended the run.")
    if facts.steps.time_ns is None or not facts.mean_step_ns:
        return _inconclusive("No training step was recorded", "Call prof.step(), or wrap the loader.")
    if facts.device_events_missing:
        if facts.trust.truncated:
            return _inconclusive(
                "The file is cut off before any device event", "Record fewer steps, or save the trace again."
            )
        return _inconclusive(
            "The run used a device, but none of its events is in the trace",
            "Record with ProfilerActivity.CUDA beside ProfilerActivity.CPU.",
        )
    if facts.launches is not None and facts.launches.lost_much:
        return _inconclusive(
            f"The file is damaged: {format_ratio(facts.launches.lost_ratio or 0.0)} of the device's work is missing",
            "Save the trace again: what the device did is not all there.",
        )
    if facts.cold:
        return _inconclusive(
            f"Only a cold start was recorded: first-use work takes {format_ratio(facts.cold.share)}",
            "Record at least 10 steps after the first 5.",
        )
    if unexplained and facts.share("idle.unknown") >= LARGEST_UNPRICED:
        return _inconclusive(
            f"{format_ratio(facts.share('idle.unknown'))} of the step cannot be explained", _what_to_record(facts)
        )
    return None


def _what_to_record(facts: Facts) -> str:
    """How the next recording would explain more."""
    if facts.trace_read:
        return "Record more steps, with every stream and the host: ProfilerActivity.CPU and ProfilerActivity.CUDA."
    why = next((signal.reason for signal in facts.trust.signals if signal.name == "operator trace"), "")
    return f"Record a trace of some steps; this run has none: {why}." if why else "Record a trace of some steps."


def _best_per_bound(outcomes: Sequence[Outcome]) -> dict[Bound, _Best]:
    best: dict[Bound, _Best] = {}
    for outcome in outcomes:
        for finding in outcome.findings:
            if finding.bound is None or finding.saving is None:
                continue
            known = best.get(finding.bound)
            better = known is None or (finding.saving.expected, finding.fix is not None) > (
                known.expected,
                known.finding.fix is not None,
            )
            if better:
                best[finding.bound] = _Best(finding.bound, finding, finding.saving)
    return best


def _named(facts: Facts, top: _Best, others: Sequence[_Best]) -> Verdict:
    share = facts.family(BOUND_FAMILY[top.bound])
    second = others[0].expected if others else 0.0
    sure: Confidence = "high" if top.expected >= 1.5 * second else "medium"
    return Verdict(
        bound=top.bound,
        detail=top.finding.detail,
        confidence=weakest(top.finding.confidence, sure),
        headline=_headline(facts, top),
        share=share,
        saving=top.saving,
        contenders=tuple(entry.bound for entry in others if entry.expected >= CONTENDER_SAVING),
        refuted_by=top.finding.confirm,
    )


def _unnamed(facts: Facts, ranked: Sequence[_Best], priced: Sequence[str]) -> Verdict:
    """No saving reaches 10 %: the kernels, if they own the step and no saving reaches 5 %; else balanced."""
    contenders = tuple(entry.bound for entry in ranked if entry.expected >= CONTENDER_SAVING)
    # Before what no rule prices: among such steps a rule that could price it keeps silent as well.
    lost = max(facts.share("mem.alloc"), *(facts.family(name) for name in ("input", "communication", "overhead")))
    if not ranked and lost >= NAMED_SAVING and relative_error(facts) >= NOISY_STEPS:
        return _inconclusive(
            f"The {facts.steps.steady} steady steps differ too much to judge",
            "Record at least 10 steps after the first 5.",
        )
    unpriced, share = _largest_unpriced(facts, priced)
    if share >= LARGEST_UNPRICED:
        return _unpriced_verdict(facts, unpriced, share)
    sure: Confidence = "medium" if share >= NOTED_UNPRICED or facts.mode != "gpu" else "high"
    if not contenders and facts.share("compute.") >= MOST_OF_THE_STEP:
        return _kernels_own_it(facts, confidence(facts, sure))
    limit = "10 %" if contenders else "5 %"
    return Verdict(
        bound="balanced",
        confidence=confidence(facts, "medium"),
        headline=f"No fix is known to save {limit} of {_its(facts)} {_step(facts)} step",
        saving=ranked[0].saving if contenders else None,
        contenders=contenders,
        refuted_by="More steps: small causes need many to stand out.",
    )


def _kernels_own_it(facts: Facts, sure: Confidence) -> Verdict:
    """Compute-bound, or memory-bound where most of the kernels are of the kind that moves memory."""
    kernels = facts.share("compute.")
    moving = facts.share("compute.membw")
    memory = moving > kernels - moving
    largest = max(("math", "small", "other"), key=lambda kind: facts.share(f"compute.{kind}"))
    time = format_ns((moving if memory else kernels - moving) * (facts.mean_step_ns or 0.0))
    what = "moves memory" if memory else "computes"
    return Verdict(
        bound="memory-bound" if memory else "compute-bound",
        detail="bandwidth" if memory else {"math": "math", "small": "small kernels"}.get(largest, ""),
        # Names tell the kind of a kernel, not the bytes it moved.
        confidence=weakest(sure, "medium") if memory else sure,
        headline=f"{who(facts)} {what} for {time} of {each(facts)} {_step(facts)} step",
        share=facts.family("memory" if memory else "compute"),
        refuted_by="A finding with an expected saving of 5 % or more.",
    )


def _priced(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Parts whose cost a finding with a saving worth naming is about, or whose own rule the user switched off."""
    out: list[str] = []
    for outcome in outcomes:
        own = _PARTS_OF_RULE.get(outcome.rule)
        out += own if own and outcome.status == "off" else ()
        for finding in outcome.findings:
            if finding.bound and finding.saving and finding.saving.expected >= CONTENDER_SAVING:
                # A rule of another package says with its bound alone what it is about.
                family = BOUND_FAMILY[finding.bound]
                out += own if own is not None else [name for name, (known, _) in PARTS.items() if known == family]
    return tuple(out)


def _largest_unpriced(facts: Facts, priced: Sequence[str]) -> tuple[str, float]:
    """The largest part outside the kernels that no finding prices, and its share."""
    parts = [part for part in facts.parts if not part.part.startswith("compute.") and part.part not in priced]
    largest = max(parts, key=lambda part: part.share, default=None)
    return (largest.part, largest.share) if largest else ("", 0.0)


def _unpriced_verdict(facts: Facts, part: str, share: float) -> Verdict:
    if part == "comm.skew":
        return _inconclusive(
            f"Ranks wait {format_ratio(share)} of the step for each other, none provably late",
            "Record 10 steps of every rank, and look for work that differs by step and rank.",
        )
    if part.startswith("comm."):
        first = to_divide(facts)
        return _inconclusive(
            f"{whose(facts)}{format_ratio(share)} of the step is communication that nothing could hide",
            f"{first}: waiting for a late rank and transfer look the same here."
            if first
            else "Compare the bus bandwidth with the link's: the transfers may be slow.",
        )
    return _inconclusive(
        f"{whose(facts)}No rule prices {PARTS[part][1].lower()} yet ({format_ratio(share)})",
        f"Look by hand at these {format_ns(facts.time_ns(part))} of {each(facts)} {_step(facts)} step.",
    )


def _its(facts: Facts) -> str:
    """Whose step it is: the late rank's, if there is one."""
    late = late_rank(facts)
    return "the" if late is None else f"rank {late}'s"


def _step(facts: Facts) -> str:
    return format_ns(facts.mean_step_ns or 0.0)


def _headline(facts: Facts, top: _Best) -> str:
    """Who loses how much of what to what, at most 14 words, of which a mean step takes one more than every step."""
    is_mean = each(facts) != "every"
    detail = top.finding.detail
    loser = who(facts)
    step = f"{each(facts)} {_step(facts)} step"
    priced = format_ns(top.expected * (facts.mean_step_ns or 0.0))

    def time(*parts: str) -> str:
        return format_ns(facts.time_ns(*parts))

    match top.bound, detail:
        case "input-bound", "h2d":
            return f"{loser} spends {time('input.h2d')} of {step} on batch copies"
        case "input-bound", _:
            return f"{loser} waits {time('input.')} of {step} for data"
        case "comm-bound", _:
            exposed = time("comm.bw", "comm.lat", "comm.other")
            what = "exposed communication" if is_mean else "communication nothing hides"
            # Transfer is nobody's own: a rank that is late as well does not cause it.
            return f"{whole_job(facts)} spends {exposed} of {step} on {what}"
        case "memory-bound", "capacity":
            return f"{loser} waits {time('mem.')} of {step} for memory allocation"
        case "memory-bound", _:
            return f"{loser} moves memory for {time('compute.membw')} of {step}"
        case "compute-bound", "imbalance":
            others = "others" if is_mean else "the others"
            return f"{loser} computes {longer(facts, priced)} longer than {others} in {step}"
        case "compute-bound", "slower":
            return f"{loser} takes {longer(facts, priced)} longer for the same work in {step}"
        case "compute-bound", _:
            fp32 = facts.math.fp32_share if facts.math else 0.0
            return f"{loser} computes in FP32 for {format_ns(fp32 * (facts.mean_step_ns or 0.0))} of {step}"
        case "overhead-bound", "sync":
            lost = format_ns(lost_share(facts) * (facts.mean_step_ns or 0.0))
            return f"{loser} loses {lost} of {step} after host syncs"
        case "overhead-bound", "checkpoint" | "evaluation":
            return top.finding.title
        case "overhead-bound", "python" if top.finding.evidence[0].origin not in _STALL_ORIGINS:
            verb, what = ("spends", "in Python") if facts.mode == "cpu" else ("idles", "while Python runs")
            return f"{loser} {verb} {priced} of {step} {what}"
        case "overhead-bound", "contention":
            return (
                f"{loser} idles {priced} of {step} after {'launching kernels' if is_mean else 'kernels were launched'}"
            )
        case "overhead-bound", "launch":
            return f"{loser} idles {priced} of {step} while {'issuing work' if is_mean else 'work is issued'}"
        case _:
            return top.finding.title


def _with_scope(facts: Facts, outcomes: Sequence[Outcome], verdict: Verdict, best: dict[Bound, _Best]) -> Verdict:
    """Add what rules the other bounds out, and the line of scope under the headline."""
    others = [bound for bound in BOUND_FAMILY if bound != verdict.bound and bound not in verdict.contenders]
    return revise(
        verdict,
        rank=None if verdict.bound == "comm-bound" else late_rank(facts),
        ruled_out=tuple(_ruled_out(facts, outcomes, bound, best.get(bound)) for bound in others)
        if verdict.bound != "inconclusive"
        else (),
        consequence=_consequence(facts, outcomes, verdict, best.get(verdict.bound)),
    )


def _ruled_out(facts: Facts, outcomes: Sequence[Outcome], bound: Bound, best: _Best | None) -> RuledOut:
    share = facts.family(BOUND_FAMILY[bound])
    takes = f"{_WORK[bound]} {format_ratio(share)} of the step"
    if best is not None:
        reason = f"{takes}; the best fix is expected to save {format_ratio(best.expected)}"
        return RuledOut(bound=bound, share=share, saving=best.expected, reason=reason)
    if unseen := _unseen(facts, bound, share):
        return RuledOut(bound=bound, share=None, saving=None, reason=unseen, state="not measured")
    own = [outcome for outcome in outcomes if outcome.rule.startswith(RULE_LETTERS[bound])]
    off = sum(outcome.status == "off" for outcome in own)
    if bound == "comm-bound" and facts.comm is None:
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
    """Why the recording does not say how much time the bound's family takes; empty when it does."""
    match bound:
        case "input-bound" if facts.input is None:
            return "no loader was seen, so its wait is not measured"
        case "memory-bound" if facts.mode != "gpu":
            return "no device events, so memory traffic is not measured"
        case "comm-bound" if facts.comm is None and not facts.trace_read:
            return "collectives are only seen in a trace"
        case "compute-bound" | "overhead-bound" if not facts.trace_read and not share:
            return "what the step computes and issues is only seen in a trace"
    return ""


def _consequence(facts: Facts, outcomes: Sequence[Outcome], verdict: Verdict, best: _Best | None) -> str:
    fired = sum(outcome.status == "fired" for outcome in outcomes)
    blind = sum(outcome.status in ("missing_data", "error") for outcome in outcomes)
    sentences = []
    if verdict.bound == "inconclusive":
        sentences.append(verdict.refuted_by)
    elif verdict.saving is not None and verdict.bound == "balanced":
        expected, most = format_ratio(verdict.saving.expected), format_ratio(verdict.saving.high)
        sentences.append(f"The best one is expected to save {expected} of it, at most {most}.")
    elif verdict.saving is not None and verdict.saving.method == "bound":
        sentences.append(f"The best fix saves at most {format_ratio(verdict.saving.high)} of the step.")
        if verdict.bound == "comm-bound" and undivided(facts):
            sentences.append("Waiting for another rank and transfer cannot be told apart.")
    elif verdict.saving is not None:
        saved = format_ratio_range(verdict.saving.low, verdict.saving.high)
        expected = f"{format_ratio(verdict.saving.expected)} ({saved})"
        by_a_fix = best is None or best.finding.fix is not None
        sentences.append(
            f"The best fix saves {expected} of the step." if by_a_fix else f"Without it a step is {expected} shorter."
        )
    elif verdict.bound != "balanced":
        sentences.append("No fix reaches 5 % of the step.")
    if verdict.bound != "inconclusive" and facts.steps.steady < 8:
        plural = "s" if facts.steps.steady != 1 else ""
        sentences.append(f"Only {facts.steps.steady} steady step{plural}.")
    sentences += waits_for(facts)
    if facts.missing_ranks:
        verb = "is" if facts.missing_ranks == 1 else "are"
        sentences.append(f"{facts.missing_ranks} of {facts.world_size} ranks {verb} missing.")
    sentences += facts.doubts[:1]
    sentences.append(f"{fired} of {len(outcomes)} rules fired; {blind} could not run.")
    return " ".join(sentences)
