"""Which parts of the step the fix of each rule is about, and what they took."""

from profilerkit.analysis.communication.table import TRANSFER
from profilerkit.analysis.facts import Facts
from profilerkit.model.step import LEAVES, WAITS

#: The parts outside the kernels that the fix of each rule with a bound makes shorter.
PARTS_OF_RULE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("IN001", "IN002", "IN003", "IN005", "IN006", "IN007", "IN008"), WAITS),
    **dict.fromkeys(("IN004", "IN011", "IN013", "IN014"), WAITS),
    **dict.fromkeys(("IN009", "IN010"), ("input.h2d",)),
    "ME001": ("mem.alloc",),
    **dict.fromkeys(("CO001", "CO002", "CO004", "CO005", "CO006", "CO007", "CO009", "CO010"), TRANSFER),
    "CO003": ("comm.skew",),
    "CO011": (*TRANSFER, "comm.skew"),
    **dict.fromkeys(("CP001", "CP002", "CP003", "CP004", "CP005", "CP006", "CP007", "CP009", "CP010", "CP013"), ()),
    **dict.fromkeys(("CO012", "IN015", "ME007", "OV008", "OV009", "OV010", "RU005", "RU009"), ()),
    "OV001": ("over.dispatch", "over.launch", "over.python"),
    "OV002": ("sync.drain", "sync.d2h", "over.python", "over.dispatch", "over.launch"),
    "OV003": ("sync.drain", "sync.d2h"),
    "OV004": ("over.gc",),
    "OV005": ("over.python",),
    "OV006": ("warm.compile", "other.phase"),
    "RU001": ("other.ckpt",),
    "RU002": ("other.eval", "other.log", "other.phase", "other.stall"),
    "ME005": ("mem.recompute",),
    "ME008": ("mem.offload",),
}

#: What the kernels of a step compute.
COMPUTING = (*(name for name in LEAVES if name.startswith("compute.")), "mem.recompute")
#: The parts of a phase that is not each step's, by the detail of a finding about it.
PHASES = {"checkpoint": "other.ckpt", "evaluation": "other.eval", "compile": "warm.compile"}
#: What the host does after a sync that would be hidden without it; what has a rule of its own is not among it.
_UNHURRIED = ("sync.drain", "over.python", "over.dispatch", "over.launch")


def cause_of(rule: str, detail: str = "") -> tuple[str, ...]:
    """Return the parts whose share tells how much of a finding's cause was recorded; empty for an unknown rule.

    Within one trace nothing tells transfers from waiting for other ranks. Rules about kernels have all of them.
    """
    if (phase := PHASES.get(detail)) is not None:
        return (phase,)
    parts = PARTS_OF_RULE.get(rule)
    if parts is None:
        return ()
    return ("comm.",) if parts == TRANSFER else parts or COMPUTING


def shortened(facts: Facts, rule: str, detail: str = "") -> tuple[str, ...]:
    """Return the parts that the fix of a rule makes shorter: of a late rank also what makes it late.

    A finding about kernels with ``detail`` "launch" is about the time in which the device waits for them to be issued.
    """
    found = facts.communication
    causes = [late.cause for late in found.late if late.cause] if found is not None and rule == "CO003" else []
    own = PARTS_OF_RULE.get(rule, ())
    return (*(PARTS_OF_RULE["OV001"] if not own and detail == "launch" else own), *causes)


#: With fewer kernels than this for each read, reads divide all of the step (a choice: two programs with hundreds of
#: reads had 18 and 7 for each; a step that reads its loss has hundreds).
_FEWEST_FOR_A_READ = 40.0
_MOST_READS = 2.0  #: that many are no loop's: the loss and one number more (a choice)
#: The code that finds them.
WARN = 'torch.cuda.set_sync_debug_mode("warn")  # names every blocking line'


def dividing_reads(facts: Facts) -> float:
    """Return the reads of a step that divide it into small pieces: no graph holds one, each decides what follows.

    0.0 where there are few, or much work between them.
    """
    reads = facts.syncs.reads_per_step if facts.syncs is not None else 0.0
    kernels = facts.device.kernels_per_step if facts.device is not None else 0.0
    return reads if reads > _MOST_READS and kernels < _FEWEST_FOR_A_READ * reads else 0.0


def issuing_share(facts: Facts) -> float:
    """Return the share of the step in which the device waits for work to be issued.

    Short gaps between operators are the price of issuing them one by one, not the user's own Python. An operator that
    holds the host of a device for longer does something else in there.
    """
    short = facts.short_python_ratio * facts.share("over.python")
    return facts.share("over.dispatch", "over.launch") - facts.operator_share + short


def own_python_share(facts: Facts) -> float:
    """Return the share of the step in longer stretches of Python."""
    return (1.0 - facts.short_python_ratio) * facts.share("over.python")


def synced_share(facts: Facts) -> float:
    """Return the share in which the device is drained after a sync, or copies what the host waits for."""
    if facts.syncs is None:
        return facts.share("sync.drain")
    # Without the calls the host would be ahead by what it spent in them, and by no more.
    gained = min(facts.syncs.idle_after_ns, facts.syncs.blocked_ns) / (facts.mean_step_ns or 1.0)
    return max(facts.share("sync.drain"), min(gained, facts.share(*_UNHURRIED))) + awaited_share(facts)


def awaited_share(facts: Facts) -> float:
    """Return the share of the step in copies to the host that its thread waits for."""
    return facts.syncs.awaited_ratio * facts.share("sync.d2h") if facts.syncs else 0.0


def held_ns(facts: Facts, rule: str) -> float:
    """Return how long the parts of a step took that a rule is about, ns, as measured; 0 where it has none.

    A fix may save less of them. Of a late rank it is what makes it late.
    """
    measured = {"OV001": issuing_share, "OV005": own_python_share, "OV002": synced_share}
    own = [part for part in shortened(facts, rule) if part != "comm.skew"]
    share = measured[rule](facts) if rule in measured else facts.share(*own)
    return share * (facts.mean_step_ns or 0.0)
