"""What the rules about transfers share: whether any were seen, how sure one can be of them, and who reduces them."""

from collections.abc import Sequence

from profilerkit.analysis.communication.records import Traffic
from profilerkit.model.communication import DistributedModel, ParallelName
from profilerkit.rules.api import Confidence, Evidence, Facts, MissingData, Result, Saving, Source, at_most, saving
from profilerkit.rules.comm.exposed_collectives import to_divide, undivided, unseen

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


def doubt(facts: Facts) -> str:
    """Return a last sentence of a reason: that part of the time may be waiting; empty where that is known."""
    why = undivided(facts)
    return f" {why}: part of this time may be waiting for a late rank." if why else ""


def confirm(facts: Facts, done: str) -> str:
    """Return how to check: ``done`` after the fix, or before it what tells transfer from waiting."""
    first = to_divide(facts)
    return f"{first}: waiting for a late rank looks the same. Then: {done}" if first else done


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
