"""Which rank a verdict is about, in words: the late one, all late ones, or the whole job."""

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.timed_ranks import median_rank_ns
from profilerkit.model.step import PARTS
from profilerkit.units import format_ns, format_ratio


def late_rank(facts: Facts) -> int | None:
    """The rank the others wait for; ``None`` if there is none."""
    if facts.waiting_share is None and not facts.late_by_timers:
        return None
    return facts.rank.rank if facts.rank.rank is not None else facts.judged_rank


def who(facts: Facts) -> str:
    """Whoever loses the time: the late rank, else the whole job."""
    late = late_rank(facts)
    return f"Rank {late}" if late is not None else whole_job(facts)


def whole_job(facts: Facts) -> str:
    """Whoever loses the time where no rank is to blame."""
    if not facts.on_device:
        return "Training"
    return "The TPU" if (facts.rank.device or "").startswith("TPU") else "The GPU"


def whose(facts: Facts) -> str:
    """The late rank before a sentence; empty if there is none."""
    late = late_rank(facts)
    return f"Rank {late}: " if late is not None else ""


def waits_for(facts: Facts) -> list[str]:
    """Who waits for whom, how long and why; nothing where nobody is late."""
    if facts.waiting_share is not None:
        waited = format_ratio(facts.waiting_share)
        return [f"The other ranks wait {waited} of the step for {_late_names(facts)}{_late_cause(facts)}."]
    spent = [rank.timed_ns for rank in facts.ranks if rank.timed_ns is not None]
    if not facts.late_by_timers:
        return []
    if facts.late_by_clock:
        return [f"Rank {late_rank(facts)} is late: its GPU alone has no work queued, so the others wait for its host."]
    if facts.rank.timed_ns is None:
        return []
    more = format_ns(facts.rank.timed_ns - median_rank_ns(spent))
    what = "waiting for data, garbage collections and phases that most ranks lack"
    timers = f"By the timers of {len(spent)} ranks rank {late_rank(facts)}"
    if facts.timed_may_be_hidden:
        return [f"{timers} spends {more} more a step on {what}; whether the device hid it is not known."]
    return [f"{timers} is late: {what} take it {more} more a step."]


def _late_names(facts: Facts) -> str:
    """All ranks the others wait for."""
    found = facts.communication.late if facts.communication else ()
    numbers = [late.rank for late in found if late.rank is not None]
    if len(numbers) > 1:
        return f"ranks {' and '.join(map(str, numbers))}"
    return f"rank {late_rank(facts)}"


def _late_cause(facts: Facts) -> str:
    """What makes the late rank late, after a colon."""
    if not facts.communication or not facts.communication.late:
        return ""
    late = facts.communication.late[0]
    if late.cause is None or late.coverage is None:
        return ": unattributed"
    words = PARTS[late.cause][1]
    return f": {words[0].lower()}{words[1:]}, {format_ratio(late.coverage)} of it"


def longer(facts: Facts, waited: str) -> str:
    """How much longer the late rank computes, which may be less than the others wait for it."""
    late = facts.communication.late if facts.communication is not None else ()
    return format_ns(late[0].cause_ns) if late and late[0].cause_ns is not None else waited
