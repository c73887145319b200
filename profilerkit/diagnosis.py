"""Findings to one verdict: what bounds the run, how sure, and why not the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from profilerkit.analysis.facts import Facts
from profilerkit.model.change import revise
from profilerkit.model.finding import Bound, Confidence, Finding, Outcome, Saving
from profilerkit.model.step import Family
from profilerkit.model.verdict import RULE_LETTERS, RuledOut, Verdict
from profilerkit.rules.rule import confidence, weakest
from profilerkit.units import format_ns, format_ratio, format_ratio_range

#: A bound is named from this expected saving (§1.8 of the diagnosis method); a contender from the second.
NAMED_SAVING = 0.10
CONTENDER_SAVING = 0.05
#: Share of the step that compute kernels must own to call a run without savings compute-bound.
MOST_OF_THE_STEP = 0.5
#: First-use work above this share of a window of at most ``COLD_STEPS`` steps: nothing steady was recorded.
COLD_SHARE = 0.25
COLD_STEPS = 3
#: A verdict needs this much of the step explained.
LARGEST_UNKNOWN = 0.5
#: Relative standard error of the step time above which silence of the rules means noise, not health.
NOISY_STEPS = 0.05

#: Where a stall's evidence comes from; its title, not the parts of the typical step, says what it costs.
_STALL_ORIGINS = ("named phase", "length of the steps")

_FAMILY: dict[Bound, Family] = {
    "input-bound": "input",
    "memory-bound": "memory",
    "comm-bound": "communication",
    "overhead-bound": "overhead",
    "compute-bound": "compute",
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
    return _with_scope(facts, outcomes, _unnamed(facts, ranked), best)


def _refusal(facts: Facts, *, unexplained: bool) -> Verdict | None:
    """The inconclusive verdict, if the recording cannot carry another one; ``unexplained`` time may be the reason."""

    def inconclusive(headline: str, refuted_by: str) -> Verdict:
        return Verdict(bound="inconclusive", confidence="low", headline=headline, refuted_by=refuted_by)

    if facts.steps.time_ns is None or not facts.mean_step_ns:
        return inconclusive("No training step was recorded", "Call prof.step(), or wrap the loader.")
    if facts.cold and facts.cold.share >= COLD_SHARE and facts.steps.count <= COLD_STEPS:
        return inconclusive(
            f"Only a cold start was recorded: first-use work takes {format_ratio(facts.cold.share)}",
            "Record at least 10 steps after the first 5.",
        )
    if unexplained and facts.share("idle.unknown") >= LARGEST_UNKNOWN:
        return inconclusive(
            f"{format_ratio(facts.share('idle.unknown'))} of the step cannot be explained",
            "Record a trace of some steps: profilerkit.profile(..., deep=True)."
            if not facts.trace_read
            else "Record all streams and the host side: ProfilerActivity.CPU and ProfilerActivity.CUDA.",
        )
    return None


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
    share = facts.family(_FAMILY[top.bound])
    second = others[0].expected if others else 0.0
    sure: Confidence = "high" if top.expected >= 1.5 * second else "medium"
    return Verdict(
        bound=top.bound,
        detail=top.finding.detail,
        confidence=weakest(top.finding.confidence, sure),
        headline=_headline(facts, top),
        share=share,
        saving=top.saving,
        rank=facts.rank.rank if facts.waiting_rank_named else None,
        contenders=tuple(entry.bound for entry in others if entry.expected >= CONTENDER_SAVING),
        refuted_by=top.finding.confirm,
    )


def _unnamed(facts: Facts, ranked: Sequence[_Best]) -> Verdict:
    """No saving reaches 10 %: compute-bound if none reaches 5 % and kernels own the step, else balanced.

    Where the steps are so noisy that no rule could speak about a loss, that is neither.
    """
    noise = facts.step_error_ns / facts.step_ns if facts.step_ns else 0.0
    lost = max(facts.family(family) for family in ("input", "communication", "overhead"))
    if not ranked and lost >= NAMED_SAVING and noise >= NOISY_STEPS:
        return Verdict(
            bound="inconclusive",
            confidence="low",
            headline=f"The {facts.steps.steady} steady steps differ too much to judge",
            refuted_by="Record at least 10 steps after the first 5.",
        )
    contenders = tuple(entry.bound for entry in ranked if entry.expected >= CONTENDER_SAVING)
    kernels = facts.share("compute.")
    if not contenders and kernels >= MOST_OF_THE_STEP:
        time = format_ns(kernels * (facts.mean_step_ns or 0.0))
        return Verdict(
            bound="compute-bound",
            detail="math" if facts.share("compute.math") >= facts.share("compute.membw") else "bandwidth",
            confidence=confidence(facts, "high" if facts.mode == "gpu" else "medium"),
            headline=f"Computation fills {time} of every {_step(facts)} step; no fix reaches 5 %",
            share=kernels,
            refuted_by="A finding with an expected saving of 5 % or more.",
        )
    limit = "10 %" if contenders else "5 %"
    return Verdict(
        bound="balanced",
        confidence=confidence(facts, "medium"),
        headline=f"No single fix saves more than {limit} of the {_step(facts)} step",
        share=None,
        saving=ranked[0].saving if contenders else None,
        contenders=contenders,
        refuted_by="More steps: small causes need many to stand out.",
    )


def _step(facts: Facts) -> str:
    return format_ns(facts.mean_step_ns or 0.0)


def _headline(facts: Facts, top: _Best) -> str:
    """Who loses how much of what to what, at most 14 words."""
    detail = top.finding.detail
    who = "The GPU" if facts.mode == "gpu" else "Training"
    if facts.waiting_rank_named:
        who = f"Rank {facts.rank.rank if facts.rank.rank is not None else facts.judged_rank}"
    step = f"every {_step(facts)} step"

    def time(*parts: str) -> str:
        return format_ns(facts.time_ns(*parts))

    match top.bound, detail:
        case "input-bound", "h2d":
            return f"{who} spends {time('input.h2d')} of {step} on batch copies"
        case "input-bound", _:
            return f"{who} waits {time('input.')} of {step} for data"
        case "comm-bound", _:
            return f"{who} spends {time('comm.')} of {step} on communication nothing hides"
        case "memory-bound", "capacity":
            return f"{who} waits {time('mem.')} of {step} for memory allocation"
        case "memory-bound", _:
            return f"{who} moves memory for {time('compute.membw')} of {step}"
        case "compute-bound", _:
            fp32 = facts.math.fp32_share if facts.math else 0.0
            return f"{who} computes in FP32 for {format_ns(fp32 * (facts.mean_step_ns or 0.0))} of {step}"
        case "overhead-bound", "sync":
            return f"{who} loses {time('sync.')} of {step} after host syncs"
        case "overhead-bound", "checkpoint" | "evaluation":
            return top.finding.title
        case "overhead-bound", "python" if top.finding.evidence[0].origin not in _STALL_ORIGINS:
            if facts.mode == "cpu":
                return f"{who} spends {time('over.python')} of {step} in Python"
            return f"{who} idles {time('over.python')} of {step} while Python runs"
        case "overhead-bound", "launch":
            return f"{who} idles {time('over.dispatch', 'over.launch')} of {step} while work is issued"
        case _:
            return top.finding.title


def _with_scope(facts: Facts, outcomes: Sequence[Outcome], verdict: Verdict, best: dict[Bound, _Best]) -> Verdict:
    """Add what rules the other bounds out, and the line of scope under the headline."""
    others = [bound for bound in _FAMILY if bound != verdict.bound and bound not in verdict.contenders]
    return revise(
        verdict,
        ruled_out=tuple(_ruled_out(facts, outcomes, verdict, bound, best.get(bound)) for bound in others)
        if verdict.bound != "inconclusive"
        else (),
        consequence=_consequence(facts, outcomes, verdict),
    )


def _ruled_out(
    facts: Facts, outcomes: Sequence[Outcome], verdict: Verdict, bound: Bound, best: _Best | None
) -> RuledOut:
    share = facts.family(_FAMILY[bound])
    takes = f"{_WORK[bound]} {format_ratio(share)} of the step"
    if best is not None:
        reason = f"{takes}; the best fix saves {format_ratio(best.expected)}"
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
    elif share > (CONTENDER_SAVING if verdict.share is None else verdict.share):
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


def _consequence(facts: Facts, outcomes: Sequence[Outcome], verdict: Verdict) -> str:
    fired = sum(outcome.status == "fired" for outcome in outcomes)
    blind = sum(outcome.status in ("missing_data", "error") for outcome in outcomes)
    sentences = []
    if verdict.bound == "inconclusive":
        sentences.append(verdict.refuted_by)
    elif verdict.saving is not None:
        saved = format_ratio_range(verdict.saving.low, verdict.saving.high)
        sentences.append(f"The best fix saves {saved} of the step.")
    if verdict.bound != "inconclusive" and facts.steps.steady < 8:
        plural = "s" if facts.steps.steady != 1 else ""
        sentences.append(f"Only {facts.steps.steady} steady step{plural}.")
    if facts.missing_ranks:
        sentences.append(f"{facts.missing_ranks} of {facts.world_size} ranks are missing.")
    sentences.append(f"{fired} of {len(outcomes)} rules fired; {blind} could not run.")
    return " ".join(sentences)
