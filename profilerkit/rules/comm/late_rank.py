"""CO003: the other ranks wait for one that comes late."""

from typing import NamedTuple

from profilerkit.analysis.ranks.late import FEWEST_EXPLAINED
from profilerkit.analysis.trust import SHOW_STACKS, fitting
from profilerkit.analysis.whatif import saving
from profilerkit.model.communication import Communication
from profilerkit.model.communication import LateRank as Late
from profilerkit.model.finding import Bound, Evidence, Fix
from profilerkit.model.step import PARTS, within
from profilerkit.rules.api import (
    SMALLEST_SAVING,
    Facts,
    MissingData,
    NotApplicable,
    Passed,
    Result,
    Rule,
    fired,
    spent,
    unsure,
)
from profilerkit.rules.comm.transfers import is_likely, settled_by
from profilerkit.units import format_ns, format_ratio


class _Remedy(NamedTuple):
    """What a late rank is bound by when its cause is a part that begins so, and what to do about it.

    Without a detail of its own, the end of the part's name is the detail.
    """

    part: str
    bound: Bound
    detail: str
    fix: str


_EVENED = "imbalance"  #: the fix moves work to other ranks

_REMEDIES = (
    _Remedy(
        "input.",
        "input-bound",
        "",
        "Give this rank its data as fast as the others: same storage, same workers and cores, shards of equal cost.",
    ),
    _Remedy(
        "compute.",
        "compute-bound",
        _EVENED,
        "Even out the work: equal batches, sequence lengths, experts and layers per rank; compare the devices' clocks.",
    ),
    _Remedy("mem.", "memory-bound", "capacity", "Compare this rank's memory with the others': it alone allocates."),
    _Remedy(
        "over.python",
        "overhead-bound",
        "python",
        "Look for what only this rank runs: logging, metrics, a progress bar, or a save under `if rank == 0`.",
    ),
    _Remedy("over.gc", "overhead-bound", "gc", "gc.disable(), then gc.collect() in the same step on all ranks."),
    _Remedy(
        "over.",
        "overhead-bound",
        "launch",
        "Compare the host of this rank with the others': cores it shares, clocks, NUMA node, operators only it runs.",
    ),
    _Remedy("sync.", "overhead-bound", "sync", "Find the .item(), .cpu() or print that only this rank runs."),
    _Remedy("other.ckpt", "overhead-bound", "checkpoint", "Save in the background, or let every rank save its part."),
    _Remedy("other.eval", "overhead-bound", "evaluation", "Divide the evaluation among the ranks."),
    _Remedy("warm.compile", "overhead-bound", "compile", "Look for shapes only this rank sees: each compiles anew."),
    _Remedy("warm.load", "overhead-bound", "launch", "Record steps after the first ones: modules are loaded once."),
    _Remedy("other.", "overhead-bound", "python", "Move what only this rank does off the training loop."),
)


#: Computing is the cause, and the work is the same.
_SLOWER = _Remedy(
    "compute.",
    "compute-bound",
    "slower",
    "Compare this rank's clocks, power limit, temperature and cores with the others', and what else runs there: its "
    "work is the same.",
)


class LateRank(Rule, frozen=True):
    """Find a rank that comes last to the collectives in most steps, while the others wait for it.

    Why it costs: A collective ends when the slowest rank arrives. All other devices idle until then.

    Example:
        if torch.distributed.get_rank() == 0:
            evaluate()
        torch.distributed.barrier()
    Use instead:
        evaluate()
        torch.distributed.barrier()
    How it is measured: Each collective is matched across ranks and split at the arrival of the last rank. The median
        other rank must wait 5 % of the step, and the late rank must cause 60 % of all waiting. The chance of such an
        order must be below 2 %. Without traces, flight recorder dumps are used. The cause is the part that takes longer
        on the late rank than on the others.
    When it is wrong: A rank that was not recorded may be the late one. Ranks that are late in turn are jitter. Clocks
        of hosts are aligned by the ends of collectives, and the remaining error is shown. With one or two steps, a rank
        is only likely late.
    """

    code = "CO003"
    summary = "The other ranks wait for one that comes late"
    reads_dumps = True

    def check(self, facts: Facts) -> Result:
        if (unable := _unable(facts)) is not None:
            return unable
        found, waited = facts.communication, facts.waiting_share
        if found is None or not found.late or waited is None:
            if found is not None and found.steps_needed is not None:
                steps = f"{found.steps} judged step{'' if found.steps == 1 else 's'}"
                return Passed(f"no rank is clearly late in {steps}: record at least {found.steps_needed}")
            if found is not None and found.blurred:
                clocks = found.matched_in == "flight recorders"
                why = "the hosts' clocks may be too far apart" if clocks else "the host is too busy"
                return Passed(f"{why} to measure how late a rank is")
            return Passed("no rank causes more of the waiting than chance does, or little of it is exposed")
        longer = waited + (facts.shown_share or 0.0)
        expected = max(longer - (facts.jitter_share or 0.0), 0.0) * _saved(facts, found)
        if expected < SMALLEST_SAVING:  # that it is no accident was judged by the collectives of each step
            return unsure(f"the others wait {format_ratio(waited)} of the step", expected)
        late = found.late[0]
        known = _remedy(late)
        is_explained = known is not None and (late.coverage or 0.0) >= FEWEST_EXPLAINED
        likely, named = is_likely(facts), " and ".join(map(_one, found.late))
        return fired(
            facts,
            bound=known.bound if known else None,
            title=f"The other ranks wait {spent(facts, waited)} for {named}{', likely late' if likely else ''}",
            why=" ".join([*(_why(one) for one in found.late), *([settled_by(facts)] if likely else [])]),
            evidence=_evidence(facts, found),
            at_most="low" if likely else "medium" if facts.missing_ranks or not is_explained else "high",
            detail=(known.detail or (late.cause or "").rpartition(".")[2]) if known else "",
            saving=saving(expected, longer),
            fix=_fix(found),
            confirm="Record again: the waiting caused by this rank must fall."
            if known
            else f"Record {_one(late)} with {fitting(SHOW_STACKS, facts.recorder)}: it names what it does.",
        )


def _unable(facts: Facts) -> Result | None:
    world = facts.world_size or len(facts.ranks)
    if world < 2:
        return NotApplicable("one rank waits for nobody")
    found = facts.communication
    if found is None:
        if not facts.trace_read:
            return MissingData("collectives are only seen in a trace", "profilerkit.profile(..., deep=True)")
        return NotApplicable("no collective was seen")
    if len(facts.ranks) == 1:
        return MissingData("one rank's trace does not show who comes last", "analyze the traces of all ranks together")
    if not found.matched and found.flight is not None and not facts.trace_read:
        record = "TORCH_NCCL_ENABLE_TIMING=1, or profilerkit.profile(..., deep=True)"
        return MissingData("the flight recorders do not show when the ranks arrived", record)
    if not found.matched:
        record = "record the same steps on every rank, at least 3"
        return MissingData("no collective could be matched across the ranks", record)
    return None


def _saved(facts: Facts, found: Communication) -> float:
    """Part of the waiting that the fix saves: evening out the work gives each rank its part of what was too much.

    Of two ranks of which one has 10 ms more to do, each has 5 ms more afterwards: half of the waiting is saved.
    """
    ranks = facts.world_size or len(facts.ranks)
    evened = all((known := _remedy(late)) is not None and known.detail == _EVENED for late in found.late)
    return 1.0 - len(found.late) / ranks if evened and len(found.late) < ranks else 1.0


def _remedy(late: Late) -> _Remedy | None:
    if late.same_work:
        return _SLOWER
    return next((row for row in _REMEDIES if late.cause is not None and late.cause.startswith(row.part)), None)


def _fix(found: Communication) -> Fix | None:
    """Return what helps against the known causes; which rank each is for, where several are late."""
    fixes = [(late, known.fix) for late in found.late if (known := _remedy(late)) is not None]
    if not fixes:
        return None
    if len(found.late) == 1 or (len(fixes) == len(found.late) and len({fix for _, fix in fixes}) == 1):
        return Fix(text=fixes[0][1])
    return Fix(text=" ".join(f"{_one(late).capitalize()}: {fix}" for late, fix in fixes))


def _one(late: Late) -> str:
    return late.origin if late.rank is None else f"rank {late.rank}"


def _why(late: Late) -> str:
    last = f"{_one(late)} is last in {late.last} of {late.of} collectives and causes {format_ratio(late.share)} of the "
    text = last[0].upper() + last[1:] + "waiting."
    if late.coverage is None:
        return f"{text} What makes it late was not measured."
    if late.cause is None or late.cause_ns is None:
        return f"{text} What makes it late is not explained: nothing that it does longer covers enough of the waiting."
    part = PARTS[late.cause][1] if late.cause in PARTS else late.cause
    left = ""
    if late.coverage and late.coverage < 0.995:
        left = f"; that explains {format_ratio(late.coverage)} of it, the rest is not explained"
    more = f"{format_ns(late.cause_ns)} a step more than the others"
    same = ", at the same work" if late.same_work else ""
    return f"{text} Before, it spends {more} on: {within(part)}{same}{left}."


def _evidence(facts: Facts, found: Communication) -> tuple[Evidence, ...]:
    by = "process group and number" if found.by == "sequence" else "order"
    origin = f"{found.matched} collectives matched by {by}"
    if found.matched_in == "flight recorders":
        origin = f"{found.matched} collectives of torch's flight recorders, matched by process group and number"

    def derived(late: Late, label: str, value: float | None, unit: str, n: int | None = None) -> Evidence:
        return Evidence(label, value, unit, "derived", origin, n=n, steps=facts.judged_steps, rank=late.rank)

    first = found.late[0]
    rows = [derived(first, "Exposed waiting of the median other rank, share of the step", facts.waiting_share, "ratio")]
    for late in found.late:
        cause = within(PARTS[late.cause][1]) if late.cause else ""
        rows += [
            derived(late, "Waiting caused, share of all", late.share, "ratio", late.of),
            derived(late, "Collectives in which it arrived last", late.last, "count", late.of),
            derived(late, f"Longer than on the others: {cause}", late.cause_ns if cause else None, "ns"),
            derived(late, "Waiting explained by that" if cause else "Waiting explained", late.coverage, "ratio"),
        ]
    ends = derived(first, "Ends of one collective apart, median", found.residual_ns, "ns", found.matched)
    return (*rows, ends)
