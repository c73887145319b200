"""What the verdict says: its headline, and the line of scope under it."""

from collections.abc import Sequence

from profilerkit.analysis.communication.traffic import TRANSFER
from profilerkit.analysis.facts import Facts
from profilerkit.diagnosis.best import CONTENDER_SAVING, Best, best_per_bound, most_suppressed
from profilerkit.diagnosis.ruled_out import holds_pauses
from profilerkit.model.finding import Bound, Outcome
from profilerkit.model.step import WHOLE_TRACE
from profilerkit.model.verdict import BOUND_FAMILY, Verdict
from profilerkit.rules.comm.exposed_collectives import undivided
from profilerkit.rules.comm.whom import longer, waits_for, who, whole_job
from profilerkit.rules.compute.fp32_matmul import Fp32Matmul
from profilerkit.rules.overhead.frequent_sync import lost_share
from profilerkit.rules.rule import each, is_mean
from profilerkit.rules.run_queue import ORIGIN as RUN_QUEUE
from profilerkit.units import format_ns, format_ratio, format_ratio_range

#: Where a stall's evidence comes from; its title, not the parts of the typical step, says what it costs.
_STALL_ORIGINS = ("named phase", "length of the steps")
#: Share of the step from which what a rule is about holds most of it.
_MOST = 0.5
#: What a family is called where it takes more of the step than the bound does.
_FAMILY_WORDS: dict[Bound, str] = {
    "input-bound": "Input",
    "memory-bound": "Memory traffic",
    "comm-bound": "Communication",
    "overhead-bound": "The host's own work",
    "compute-bound": "Computing",
}


def mean_step(facts: Facts) -> str:
    """The mean step as text."""
    return format_ns(facts.mean_step_ns or 0.0)


def headline(facts: Facts, top: Best) -> str:
    """Who loses how much of what to what, at most 14 words, of which a mean step takes one more than every step."""
    detail = top.finding.detail
    loser = who(facts)
    step = each(facts, mean_step(facts))
    priced = format_ns(top.expected * (facts.mean_step_ns or 0.0))

    def time(*parts: str) -> str:
        return format_ns(facts.time_ns(*parts))

    match top.bound, detail:
        case "input-bound", "h2d":
            return f"{loser} spends {time('input.h2d')} of {step} on batch copies"
        case "input-bound", _:
            return f"{loser} waits {time('input.')} of {step} for data"
        case "comm-bound", "bubble" | "contention" | "engine":
            return top.finding.title
        case "comm-bound", _:
            exposed = time(*TRANSFER)
            what = "exposed communication" if is_mean(facts) else "communication nothing hides"
            # Transfer is nobody's own: a rank that is late as well does not cause it.
            return f"{whole_job(facts)} spends {exposed} of {step} on {what}"
        case "memory-bound", "capacity" if facts.share("mem.alloc") > facts.share("mem.recompute", "mem.offload"):
            return f"{loser} waits {time('mem.')} of {step} for memory allocation"
        case "memory-bound", "capacity":
            return top.finding.title
        case "memory-bound", _ if facts.share("compute.membw"):
            return f"{loser} moves memory for {time('compute.membw')} of {step}"
        case "compute-bound", "imbalance":
            others = "others" if is_mean(facts) else "the others"
            return f"{loser} computes {longer(facts, priced)} longer than {others} in {step}"
        case "compute-bound", "slower":
            return f"{loser} takes {longer(facts, priced)} longer for the same work in {step}"
        case "compute-bound", "precision":
            math = facts.math
            wide = format_ns((math.wide_share if math else 0.0) * (facts.mean_step_ns or 0.0))
            return f"{loser} computes {'32-bit math' if math and math.wide else 'in FP32'} for {wide} of {step}"
        case "overhead-bound", "sync":
            lost = format_ns(lost_share(facts) * (facts.mean_step_ns or 0.0))
            return f"{loser} loses {lost} of {step} after host syncs"
        case "overhead-bound", "checkpoint" | "evaluation":
            return top.finding.title
        case "overhead-bound", "python" if top.finding.evidence[0].origin not in _STALL_ORIGINS:
            verb, what = ("spends", "in Python") if facts.mode == "cpu" else ("idles", "while Python runs")
            return f"{loser} {verb} {priced} of {step} {what}"
        case "overhead-bound", "contention" if facts.mode == "gpu" and top.finding.evidence[0].origin != RUN_QUEUE:
            after = "launching kernels" if is_mean(facts) else "kernels were launched"
            return f"{loser} idles {priced} of {step} after {after}"
        case "overhead-bound", "launch" if facts.mode != "gpu":
            return f"{loser} spends {priced} of {step} on calling small operators"
        case "overhead-bound", "launch":
            return f"{loser} idles {priced} of {step} while {'issuing work' if is_mean(facts) else 'work is issued'}"
        case _:
            return top.finding.title


def consequence(facts: Facts, outcomes: Sequence[Outcome], verdict: Verdict, best: Best | None) -> str:
    """What the best fix saves, and what the reader must know of the recording."""
    fired = sum(outcome.status == "fired" for outcome in outcomes)
    blind = sum(outcome.status in ("missing_data", "error") for outcome in outcomes)
    if facts.logs is not None and facts.logs.alone:
        return f"{verdict.refuted_by} {fired} of {len(outcomes)} rules fired; {blind} could not run."
    sentences = []
    if facts.taken:
        waited = format_ratio(facts.taken)
        sentences.append(f"This machine is busy: {waited} of the recorded step waits for a processor, left out here.")
    known = best_per_bound(outcomes, suppressed=True).get(verdict.bound)
    if known is not None and known.aside is not None:
        # The reason stands above it: every report names what is suppressed, and why, largest saving first.
        sentences.append(f"Its finding {known.aside.rule} is suppressed.")
    if verdict.bound == "inconclusive" or verdict.detail == "likely":
        sentences.append(verdict.refuted_by)
    elif verdict.saving is not None and verdict.bound == "balanced":
        expected, most = format_ratio(verdict.saving.expected), format_ratio(verdict.saving.most)
        sentences.append(f"The best one is expected to save {expected} of it, at most {most}.")
    elif verdict.saving is not None and verdict.saving.method == "bound":
        by_probe = ", as a probe in the run measured" if best is not None and best.finding.predicted else ""
        sentences.append(f"The best fix saves at most {format_ratio(verdict.saving.high)} of the step{by_probe}.")
        if verdict.bound == "comm-bound" and undivided(facts):
            sentences.append("Waiting for another rank and transfer cannot be told apart.")
    elif verdict.saving is not None:
        saved = format_ratio_range(verdict.saving.low, verdict.saving.high)
        expected = f"{format_ratio(verdict.saving.expected)} ({saved})"
        if best is not None and best.fixes > 1:
            sentences.append(f"Its {best.fixes} fixes together save {expected} of the step.")
        elif best is None or best.finding.fix is not None or best.saving != verdict.saving:
            sentences.append(f"The best fix saves {expected} of the step.")
        else:
            sentences.append(f"Without it a step is {expected} shorter.")
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
        sentences += facts.doubts[:1]
    sentences.append(f"{fired} of {len(outcomes)} rules fired; {blind} could not run.")
    return " ".join(sentences)


def _larger_share(facts: Facts, outcomes: Sequence[Outcome], verdict: Verdict) -> list[str]:
    """Why a family that takes more of the step than the bound's own is not the bound: savings decide, not shares.

    Nobody wonders that a step computes, unless kernels are what bounds it.
    """
    if verdict.share is None or verdict.bound not in BOUND_FAMILY:
        return []
    own = (verdict.bound, *(() if verdict.bound == "memory-bound" else ("compute-bound",)))
    shares = {bound: facts.family(family) for bound, family in BOUND_FAMILY.items() if bound not in own}
    bound = max(shares, key=lambda name: shares[name])
    share = shares[bound]
    if share <= verdict.share:
        return []
    best = best_per_bound(outcomes).get(bound)
    if best is not None:
        why = f"its best fix is expected to save {format_ratio(best.expected)}"
    else:
        why = "that is the work itself" if bound == "compute-bound" else "no fix for it was found"
    pauses = " with pauses" if holds_pauses(facts, bound) else ""
    than = f"{_FAMILY_WORDS[verdict.bound].lower()} {format_ratio(verdict.share)}"
    return [f"{_FAMILY_WORDS[bound]}{pauses} takes a larger share ({format_ratio(share)}, {than}), but {why}."]


def _without_saving(facts: Facts, outcomes: Sequence[Outcome]) -> str:
    """What the fixes of other bounds save where the verdict's own has none, or none that was not set aside."""
    aside = "Suppressed findings aside, " if most_suppressed(outcomes) >= CONTENDER_SAVING else ""
    known = [entry for entry in best_per_bound(outcomes).values() if entry.finding.fix is not None]
    most = max((entry.expected for entry in known), default=0.0)
    if most >= CONTENDER_SAVING:
        said = f"the best fix is expected to save {format_ratio(most)} of the step."
    elif any(finding.saving is None and finding.fix and finding.bound for row in outcomes for finding in row.findings):
        said = "the fixes named here could not be priced."
    elif facts.math is not None and facts.math.wide_share >= _MOST and _lacks_data(outcomes, Fp32Matmul.code):
        said = "what a lower precision saves could not be told."
    else:
        said = "no fix that is known here reaches 5 % of the step."
    return f"{aside}{said}" if aside else f"{said[0].upper()}{said[1:]}"


def _lacks_data(outcomes: Sequence[Outcome], rule: str) -> bool:
    """Whether a rule could not tell for want of data."""
    return any(outcome.rule == rule and outcome.status == "missing_data" for outcome in outcomes)
