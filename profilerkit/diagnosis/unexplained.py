"""How much of the step nothing explains, as far as that stands in the way of a verdict."""

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import unnamed_pauses


def unexplained_share(facts: Facts) -> float:
    """Share of the steady time that nothing explains.

    What a few slow steps take beyond the others is left out: a rule of its own tells of those, and what bounds
    the other steps is known all the same. So is what the record of the run tells as evaluation, which has no part of
    its own, but for what a regular stall took of it; and the time in which the thread waited for a processor, which the
    traced steps need not have shown.
    """
    inferred = sum(pause.share for pause in facts.pauses if pause.inferred) - facts.share("other.stall", "other.eval")
    share = facts.share("idle.unknown") - max(inferred, 0.0) - unnamed_pauses(facts)
    return max(share - queued_share(facts), 0.0)


def queued_share(facts: Facts) -> float:
    """Share of the steady time in which the training thread was ready and others had its processor; 0 if not known.

    Of several ranks on a host each waits for the others' threads as well, and a device works on meanwhile.
    """
    is_known = not facts.on_device and (facts.world_size or 1) == 1 and not facts.taken
    return (facts.steps.queued_ratio or 0.0) if is_known else 0.0
