"""Find the lines of the user's that hold most of a place, and what grows, by the looks of the stack sampler."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE, timed
from profilerkit.analysis.intervals import Spans, covered, union
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.steps.series import LEAST_COVERAGE, Stall
from profilerkit.analysis.steps.trend import FEWEST_TO_GROW
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.sampled import StackPlace, StackSample
from profilerkit.trace.columns import I64, Bools


class HotLine(msgspec.Struct, frozen=True):
    """The innermost function that holds much of a place, and its line with most looks."""

    #: ``file.py(12): function`` of its callers in that place and itself, outer first, at most four. Hostile.
    frames: tuple[str, ...]
    #: Of the looks in that place that found it there: in the line where that holds enough, else the function.
    share: float
    low: float
    high: float
    looks: int


#: A line is named where its share is above one third, with what chance could make of so many looks: below, all other
#: lines together hold twice as much, and what is gained there is not known to be much (a choice).
_ENOUGH_RATIO = 1 / 3
#: Looks below which nothing is said: of four, all four may be in a line that holds half by chance in 6 of 100 cases.
_FEWEST = 5
#: With fewer in the judged steps those of the warm-up count as well: what is slow is so in the same lines (a choice).
_FEW = 100
_Z95 = 1.96
#: A look that waited longer for the interpreter took it from the thread, which ran Python (``capture/stacks.py``).
_HELD_NS = 500_000
#: A look that waited longer for a processor is late (a choice: a sample of a batch takes about as long).
_QUEUED_NS = 2_000_000


def hot_line(samples: Sequence[StackSample], *, of_loop: bool = False) -> HotLine | None:
    """Return the line that holds most of the samples; ``None`` where none holds enough, or hardly any were taken.

    Looks that found the thread between two calls of the user's, long after they were due, are left out: on a busy host
    a look gets a processor where the thread gives up its own, as torch does there. Samples ``of_loop`` are of no single
    call of it: their common caller is the loop itself, which is no answer, unless one line of it is.
    """
    late = [one.in_torch and one.queued_ns > _QUEUED_NS and one.place in ("input", "collate") for one in samples]
    samples = [sample for sample, is_late in zip(samples, late, strict=True) if not is_late]
    if len(samples) < _FEWEST:
        return None
    chains = [sample.lines for sample in samples if sample.lines]
    counts = Counter(function for chain in chains for function in {function_of(line) for line in chain})
    enough = {name for name, count in counts.items() if interval(count, len(samples))[0] > _ENOUGH_RATIO}
    if not enough:
        return None
    function = max(sorted(enough - _callers(chains, enough, counts) or enough), key=lambda name: counts[name])
    within = Counter(_up_to(chain, function) for chain in chains if function in map(function_of, chain))
    lines = Counter[str]()
    for chain, count in within.items():
        lines[chain[-1]] += count
    line, count = lines.most_common(1)[0]
    if interval(count, len(samples))[0] <= _ENOUGH_RATIO:
        if of_loop and counts[function] == len(chains):
            return None
        count = counts[function]
    frames = max((chain for chain in within if chain[-1] == line), key=lambda chain: within[chain])
    return HotLine(frames, count / len(samples), *interval(count, len(samples)), len(samples))


def interval(count: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's formula.

    >>> [round(end, 3) for end in interval(9, 10)]
    [0.596, 0.982]
    """
    share, square = count / of, _Z95**2 / of
    middle = (share + square / 2) / (1 + square)
    half = _Z95 * math.sqrt(share * (1 - share) / of + square / of / 4) / (1 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def lines_of(record: RankRecord, log: StepLog) -> Mapping[str, HotLine]:
    """Return the hot lines of a rank by place, as far as they are known.

    They are ``input``, of the training thread in the loader; ``workers``, of the loader's, and of that ``fetch`` and
    ``collate``; ``python``, Python and waits outside of loader and torch; ``calls``, that as well as calls of
    torch, without backward pass and optimizer; ``hook``, in the backward pass;
    ``forward_hook``, which modules call; ``unnamed``, what makes steps longer that recur, and ``model``, what runs a
    model in these. Steps with an evaluation or another named phase are left out, and phases that make steps longer are
    places of their own.
    """
    if not len(log.index):
        return {}
    at = np.array([sample.t_ns for sample in record.stacks], dtype=np.int64)
    step, first = in_step(at, log.start, log.stop), _first(log, record.stacks)
    rows = np.flatnonzero(log.steady)
    within = np.zeros(len(log.index), dtype=bool)  # and of these the plain ones, without named phases
    within[first : int(rows[-1]) + 1 if len(rows) else 0] = True
    plain = within.copy()
    for spent in log.phases.values():
        plain &= spent == 0
    here = _chosen(record.stacks, (step >= 0) & (plain if plain.any() else within)[np.maximum(step, 0)])
    since, until = int(log.start[first]), int(log.stop[-1])
    workers = [sample for worker in record.workers for sample in worker.stacks if since <= sample.t_ns <= until]
    found = {
        "input": hot_line([sample for sample in here if sample.place == "input"]),
        "workers": hot_line(workers),
        "fetch": hot_line([sample for sample in workers if sample.place == "input"]),
        "collate": hot_line([sample for sample in workers if sample.place == "collate"]),
        "python": hot_line([sample for sample in here if _is_python(sample)], of_loop=True),
        "calls": _share_of_step(here, "step", of_loop=True),
        "hook": _share_of_step(here, "hook"),
        "forward_hook": _share_of_step(here, "forward_hook"),
        **_of_stalls(record.stacks, step, log),
        **_of_phases(record, log),
    }
    return {place: line for place, line in found.items() if line is not None}


def line_within(stacks: Sequence[StackSample], spans: Spans) -> HotLine | None:
    """Return the hot line of some time of the training thread."""
    at = np.array([sample.t_ns for sample in stacks], dtype=np.int64)
    return hot_line(_chosen(stacks, covered(spans, at))) if len(stacks) and len(spans) else None


def _share_of_step(samples: Sequence[StackSample], place: StackPlace, *, of_loop: bool = False) -> HotLine | None:
    """The hot line of a place, with its share of the step."""
    own = [sample for sample in samples if sample.place == place]
    if (line := hot_line(own, of_loop=of_loop)) is None:
        return None
    count = round(line.share * len(own))
    return HotLine(line.frames, count / len(samples), *interval(count, len(samples)), len(samples))


def phase_place(name: str) -> str:
    """Return the place of a phase that the program names."""
    return f"phase: {name}"


def _of_phases(record: RankRecord, log: StepLog) -> dict[str, HotLine | None]:
    """The lines of the phases that make steps longer."""
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    named = {stall.kind for stall in log.stalls if stall.part is not None}
    found: dict[str, HotLine | None] = {}
    for name in named & set(record.names.values()):
        numbers = [number for number, text in record.names.items() if text == name]
        spans = timed(events[(events["kind"] == EventKind.PHASE) & np.isin(events["name"], numbers)])
        found[phase_place(name)] = line_within(record.stacks, union(spans.start, spans.end))
    return found


def _of_stalls(stacks: Sequence[StackSample], step: I64, log: StepLog) -> dict[str, HotLine | None]:
    """The line that holds more of longer steps that recur than of others, and what runs a model in what they add."""
    stall = next((stall for stall in log.stalls if stall.part is None), None)
    if stall is None:
        return {}
    is_long = _long(stall, log)
    is_usual = log.steady & ~is_long
    long, others = (_chosen(stacks, (step >= 0) & kept[np.maximum(step, 0)]) for kept in (is_long, is_usual))
    line = hot_line(long)
    usual = sum(bool(line) and line.frames[-1] in sample.lines for sample in others) if line else 0
    is_theirs = line and (not others or line.low > interval(usual, len(others))[1])
    # Of as many usual steps as these: what they look like without what makes them longer.
    times = int(is_long.sum()) / max(int(is_usual.sum()), 1)
    added = len(long) - times * len(others)
    runs = [sample for sample in long if _runs_model(sample)]
    more = len(runs) - times * sum(map(_runs_model, others))
    model = hot_line(runs)
    share = min(more / added, 1.0) if added > 0 else 0.0
    low, high = interval(round(share * len(long)), len(long)) if share > 0 else (0.0, 0.0)
    return {
        "unnamed": line if is_theirs else None,
        "model": HotLine(model.frames, share, low, high, len(long)) if model is not None and share > 0 else None,
    }


def _runs_model(sample: StackSample) -> bool:
    """Whether the thread ran a module outside of loader, backward pass and optimizer, or what torch adds in Python."""
    in_forward = any(line.endswith("): forward") for line in sample.lines)
    return sample.place in ("step", "forward_hook") and (sample.in_torch or in_forward)


def _long(stall: Stall, log: StepLog) -> Bools:
    """The steps that a stall makes longer."""
    first, last = stall.steps
    if stall.period:
        within: Bools = (log.index >= first) & (log.index <= last)
        within &= (log.index - first) % stall.period == 0
        return within
    longer: Bools = log.time > np.median(log.time[log.steady]) + stall.excess_ns / 2
    longer &= log.steady
    return longer


def _first(log: StepLog, stacks: Sequence[StackSample]) -> int:
    """The first step whose looks count: the first judged one, or the second of all where that leaves few looks."""
    rows = np.flatnonzero(log.steady)
    judged = int(rows[0]) if len(rows) else len(log.index)
    looks = sum(sample.t_ns >= log.start[judged] for sample in stacks) if len(rows) else 0
    return judged if looks >= _FEW else min(1, len(log.index) - 1)


def _chosen(samples: Sequence[StackSample], mask: Bools) -> list[StackSample]:
    return [samples[row] for row in np.flatnonzero(mask).tolist()]


def _is_python(sample: StackSample) -> bool:
    """Whether the thread ran Python or waited, outside of the loader and in no code of torch's."""
    is_seen = sample.waits or sample.held_ns > _HELD_NS
    return is_seen and not sample.in_torch and sample.place in ("step", "hook", "forward_hook")


def function_of(line: str) -> str:
    """A frame without its line number."""
    file, _, rest = line.rpartition("(")
    return f"{file}{rest.partition(')')[2]}"


def _callers(chains: Sequence[tuple[str, ...]], known: Collection[str], counts: Counter[str]) -> set[str]:
    """Those of the known functions that another of them is mostly called by."""
    called = Counter[tuple[str, str]]()
    for chain in chains:
        names = [name for name in map(function_of, chain) if name in known]
        called.update(pair for pair in pairwise(names) if pair[0] != pair[1])
    return {caller for (caller, name), count in called.items() if count > counts[name] / 2}


def _up_to(chain: tuple[str, ...], function: str) -> tuple[str, ...]:
    """The calls down to the innermost of a function."""
    last = max(at for at, line in enumerate(chain) if function_of(line) == function)
    return chain[: last + 1]


def growing_line(record: RankRecord, log: StepLog) -> HotLine | None:
    """Return the line that holds most of what the last third of the judged steps takes more than the first."""
    rows = np.flatnonzero(log.steady)
    if len(rows) < FEWEST_TO_GROW:
        return None
    early, _, late = np.array_split(rows, 3)
    before, now = (float(log.time[third].mean()) for third in (early, late))
    first, last = (_looks(record, log, third) for third in (early, late))
    line = hot_line(last, of_loop=True)
    if line is None or not first or now <= before:
        return None
    function = function_of(line.frames[-1])
    seen, still = (sum(function in map(function_of, sample.lines) for sample in looks) for looks in (first, last))
    more = now * still / len(last) - before * seen / len(first)
    # A line that holds as much of the step as before is the loop itself.
    is_more = interval(still, len(last))[0] > seen / len(first)
    return line if is_more and more >= LEAST_COVERAGE * (now - before) else None


def _looks(record: RankRecord, log: StepLog, rows: I64) -> list[StackSample]:
    low, high = int(log.start[rows[0]]), int(log.stop[rows[-1]])
    return [sample for sample in record.stacks if low <= sample.t_ns < high]
