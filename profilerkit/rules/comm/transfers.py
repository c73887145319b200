"""What the rules about collectives share: whether any were seen, how sure one can be, and whom a claim is about."""

from collections.abc import Sequence

from profilerkit.analysis.communication.table import Traffic
from profilerkit.analysis.communication.whatif import exposed
from profilerkit.analysis.ranks.late import median_rank_ns
from profilerkit.analysis.whatif import at_most, saving
from profilerkit.model.communication import DistributedModel, LateRank, ParallelName
from profilerkit.model.finding import Confidence, Evidence, Fix, Saving, Source
from profilerkit.model.step import PARTS, within
from profilerkit.rules.api import ENOUGH_STEPS, Facts, Fired, MissingData, Result, fired, judged, may_train, spent
from profilerkit.rules.comm.exposed_collectives import ExposedCollectives, to_divide, undivided, unseen
from profilerkit.units import format_ns, format_ratio

#: Torch's name of the wrapper as it begins what shows a job divided by data.
_DDP = "DistributedDataParallel"
KIND_WORDS = {"all_reduce": "all-reduce", "reduce_scatter": "reduce-scatter", "all_gather": "all-gather"}


def untold(facts: Facts) -> Result | None:
    """Return why a rule about single kinds of collectives cannot look; ``None`` when it can."""
    if (unable := unseen(facts)) is not None:
        return unable
    if facts.collective_work is None or not facts.collective_work.traffic:
        return MissingData("which collectives ran is only seen in a trace", "profilerkit.profile(..., deep=True)")
    return None


def transfer_saving(facts: Facts, expected: float, bound: float) -> Saving:
    """Return the interval; where transfer and waiting look the same the bound is all that is known."""
    return at_most(bound, expected) if undivided(facts) else saving(expected, bound)


def surest(facts: Facts, most: Confidence) -> Confidence:
    """``most``, or low where transfer and waiting look the same; medium at most on a host."""
    if undivided(facts):
        return "low"
    return "medium" if facts.mode == "cpu" and most == "high" else most


def transfers_fired(
    facts: Facts,
    *,
    title: str,
    why: str,
    evidence: tuple[Evidence, ...],
    sure: Confidence,
    detail: str,
    saving: Saving,
    fix: Fix,
    confirm: str,
) -> Fired:
    """End a rule with a finding that says, where it holds, that part of the time may be waiting for a late rank."""
    doubt, first = undivided(facts), to_divide(facts)
    return fired(
        facts,
        bound="comm-bound",
        title=title,
        why=f"{why} {doubt}: part of this time may be waiting for a late rank." if doubt else why,
        evidence=evidence,
        at_most=surest(facts, sure),
        detail=detail,
        saving=saving,
        fix=fix,
        confirm=f"{first}: waiting for a late rank looks the same. Then: {confirm}" if first else confirm,
    )


def evidence(
    facts: Facts, label: str, value: float | None, unit: str, origin: str, source: Source = "derived"
) -> Evidence:
    """One number of the judged rank's steady steps, derived unless it is said."""
    return facts.evidence(label, value, unit, origin, source)


def kinds(chosen: Sequence[Traffic]) -> str:
    """Their kinds as words, most time first: ``all-reduce and all-gather``."""
    names = list(dict.fromkeys(KIND_WORDS.get(row.kind, row.kind.replace("_", "-")) for row in chosen))
    return " and ".join(names[:2]) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} other kinds"


def divides(facts: Facts, name: ParallelName) -> bool:
    """Return whether the job is divided so, as far as groups and names show."""
    known = facts.communication.parallelism if facts.communication is not None else ()
    return any(found.name == name for found in known)


def models(facts: Facts) -> tuple[DistributedModel, ...]:
    """Return the models that DistributedDataParallel told about."""
    return facts.communication.ddp if facts.communication is not None else ()


def by_ddp(facts: Facts) -> bool:
    """Return whether DistributedDataParallel reduces the gradients."""
    known = facts.communication.parallelism if facts.communication is not None else ()
    return bool(models(facts)) or any(found.evidence.startswith(_DDP) for found in known)


def late_rank(facts: Facts) -> int | None:
    """Return the rank the others wait for; ``None`` if there is none."""
    if facts.waiting_share is None and not facts.late_by_timers:
        return None
    return facts.rank.rank if facts.rank.rank is not None else facts.judged_rank


def who(facts: Facts) -> str:
    """Return whoever loses the time: the late rank, else the whole job."""
    late = late_rank(facts)
    return f"Rank {late}" if late is not None else whole_job(facts)


def whole_job(facts: Facts) -> str:
    """Return whoever loses the time where no rank is to blame."""
    if not facts.on_device:
        return "Training" if may_train(facts) else "The program"
    device = facts.rank.device or ""
    return next((f"The {kind}" for kind in ("TPU", "NPU") if kind in device), "The GPU")


def whose(facts: Facts) -> str:
    """Return the late rank before a sentence; empty if there is none."""
    late = late_rank(facts)
    return f"Rank {late}: " if late is not None else ""


def is_likely(facts: Facts) -> bool:
    """Return whether the late rank is only likely: the steps are too few to be sure."""
    return facts.waiting_share is not None and any(late.few_steps for late in _late(facts))


def waits_for(facts: Facts) -> list[str]:
    """Return who waits for whom, how long and why; of a rank alone how long at most. Nothing where nobody is late."""
    if facts.waiting_share is not None:
        waited, cause = format_ratio(facts.waiting_share), ""
        for late in _late(facts)[:1]:
            cause = ": not explained"
            if late.cause is not None and late.coverage is not None:
                cause = f": {within(PARTS[late.cause][1])}, {format_ratio(late.coverage)} of it"
        told = [f"The other ranks wait {waited} of {judged(facts)} for {_late_names(facts)}{cause}."]
        return [settled_by(facts), *told] if is_likely(facts) else told
    spent = [rank.timed_ns for rank in facts.ranks if rank.timed_ns is not None]
    if not facts.late_by_timers:
        return waits_at_most(facts)
    if facts.late_by_clock:
        return [f"Rank {late_rank(facts)} is late: its GPU alone has no work queued, so the others wait for its host."]
    if facts.rank.timed_ns is None:
        return []
    more = format_ns(facts.rank.timed_ns - median_rank_ns(spent))
    what = "waiting for data, garbage collections and phases that most ranks lack"
    timers = f"By the timers of {len(spent)} ranks rank {late_rank(facts)}"
    if facts.timed_may_be_hidden:
        return [f"{timers} spends {more} more a step on {what}; whether the device worked meanwhile is not known."]
    return [f"{timers} is late: {what} take {more} longer a step."]


def settled_by(facts: Facts) -> str:
    """Return how sure it is that the late ranks are late, and how many steps settle it, in a sentence."""
    names, needed = _late_names(facts), facts.communication.steps_needed if facts.communication else None
    are = "are" if len(_late_numbers(facts)) > 1 else "is"
    steps = max(needed or 0, ENOUGH_STEPS)
    return f"{names[0].upper()}{names[1:]} {are} likely late: record at least {steps} steps to be sure."


def waits_at_most(facts: Facts) -> list[str]:
    """Return how long the rank waits for others that were not read, at most; nothing where that is little or known."""
    share, all_read = exposed(facts), len(facts.ranks) > 1 and not facts.missing_ranks
    if facts.framework or all_read or share < ExposedCollectives().smallest_share or not undivided(facts):
        return []
    who, waited = "This rank" if facts.rank.rank is None else f"Rank {facts.rank.rank}", spent(facts, share)
    return [f"{who} waits up to {waited} for others: analyze the other ranks' files too to learn for whom."]


def _late(facts: Facts) -> tuple[LateRank, ...]:
    return facts.communication.late if facts.communication is not None else ()


def _late_numbers(facts: Facts) -> list[int]:
    return [late.rank for late in _late(facts) if late.rank is not None]


def _late_names(facts: Facts) -> str:
    numbers = _late_numbers(facts)
    if len(numbers) > 1:
        return f"ranks {' and '.join(map(str, numbers))}"
    return f"rank {late_rank(facts)}"


def longer(facts: Facts, waited: str) -> str:
    """Return how much longer the late rank computes, which may be less than the others wait for it."""
    late = _late(facts)
    return format_ns(late[0].cause_ns) if late and late[0].cause_ns is not None else waited
