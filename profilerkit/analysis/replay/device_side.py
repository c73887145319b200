"""Which steps are replayed, and the device's events of them in the order of issue, with what each waited for."""

import msgspec
import numpy as np

from profilerkit.analysis.device.copies import TO_HOST, are_pageable, directions
from profilerkit.analysis.host.gaps import RELEASE_NS
from profilerkit.analysis.host.names import BLOCKING_CALL_NS
from profilerkit.analysis.replay.graph import NEVER
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.trace.columns import F64, I64, Bools, Category, TraceColumns

#: Device events replayed at most: 20,000 replay in about 20 ms with eight changes, next to about 0.3 s of analysis for
#: a trace of that many (2-core machine). A choice.
MOST_EVENTS = 20_000
FEWEST_STEPS = 3  #: judged steps replayed at least, whatever they hold
MOST_EXCESS = 4  #: how many times as many events these may hold (a choice)


class Scope(msgspec.Struct, frozen=True):
    """The steps that are replayed."""

    edge: I64  #: ``(n_steps + 1,)`` int64 ns, where they begin and the last one ends
    judged: Bools  #: ``(n_steps,)`` bool, steps that count
    number: I64
    of: int
    ends_when_done: bool  #: the last step ends when the device is done, not where a next one begins

    @property
    def start_ns(self) -> int:
        """Where the replay begins."""
        return int(self.edge[0])

    @property
    def end_ns(self) -> int:
        """Where it ends."""
        return int(self.edge[-1])


def scope_of(steps: TraceSteps, device_start_ns: I64, most_events: int = MOST_EVENTS) -> Scope | None:
    """The steps to replay; ``None`` without a judged one, and where so few of them hold far more than is replayed."""
    judged = steps.judged
    if not judged.any():
        return None
    first, last = _longest(steps, judged)
    before = np.searchsorted(device_start_ns, steps.start)
    after = np.searchsorted(device_start_ns, steps.end)
    chosen = np.flatnonzero(judged[first : last + 1]) + first
    low = high = int(chosen[len(chosen) // 2])
    middle, count = float(chosen.mean()), np.r_[0, np.cumsum(judged)]
    while (low, high) != (first, last):
        wider = (max(low - 1, first), high) if high - low > 0 and high - middle > middle - low else None
        wider = wider if wider and wider != (low, high) else (low, min(high + 1, last))
        wider = wider if wider != (low, high) else (max(low - 1, first), high)
        enough = count[high + 1] - count[low] >= FEWEST_STEPS
        if enough and after[wider[1]] - before[wider[0]] > most_events:
            break
        low, high = wider
    if after[high] - before[low] > MOST_EXCESS * most_events:
        return None
    lead = int(low > 0 and steps.end[low - 1] == steps.start[low])
    inside = slice(low - lead, high + 1)
    counted = judged[inside].copy()
    counted[:lead] = False
    followed = high + 1 < len(steps.start) and steps.start[high + 1] == steps.end[high]
    return Scope(
        edge=np.r_[steps.start[inside], steps.end[high]],
        judged=counted,
        number=steps.index[inside],
        of=int(judged.sum()),
        ends_when_done=not followed,
    )


def _longest(steps: TraceSteps, judged: Bools) -> tuple[int, int]:
    """First and last judged step of the stretch of adjacent steps that holds most of them."""
    stretch = np.r_[0, np.cumsum(steps.start[1:] != steps.end[:-1])]
    most = int(np.bincount(stretch, weights=judged).argmax())
    own = np.flatnonzero(judged & (stretch == most))
    return int(own[0]), int(own[-1])


#: Launch latencies and pauses between kernels vary; what is beyond this multiple of their median plus so much is not
#: theirs: something else was waited for that the trace does not tell, and the replay must show that it misses it.
#: Choices; kernels follow each other within 1 to 2 µs, launches take 2 to 10 µs.
LONGEST_RATIO, LONGEST_LATENCY_NS, LONGEST_PAUSE_NS = 4.0, 20_000.0, 5_000.0
#: Between kernels of one stream, where none of the trace found another before it (a choice: 1 µs on current devices).
USUAL_PAUSE_NS = 1_000.0
_EXPLAINED_NS = 1_000.0  #: later than what is known by less than this is not later


class Device(msgspec.Struct, frozen=True):
    """Events in the order of issue; arrays are ``(n_events,)``, times int64 ns on the trace's clock."""

    row: I64
    stream: I64
    start: I64
    end: I64
    anchor: I64  #: the moment of the host that issued it: the return of its call, the beginning of one that waits
    issued: Bools  #: whether that is known to be within the replayed steps; work from before only follows its stream
    call: I64
    held: Bools  #: whether the call returned only when its copy was done

    def __len__(self) -> int:
        return len(self.row)


def device_of(columns: TraceColumns, ran: Bools, launches: I64, scope: Scope) -> Device:
    """Put the judged device's events of the replayed steps in the order in which the host issued them."""
    rows = np.flatnonzero(ran & (columns.end_ns > scope.start_ns))
    call = launches[rows]
    # What was issued in the steps belongs to them however late it runs.
    mine = np.where(call >= 0, columns.ts_ns[np.maximum(call, 0)], columns.ts_ns[rows]) < scope.end_ns
    rows, call = rows[mine], call[mine]
    at = np.maximum(call, 0)
    start, end = columns.ts_ns[rows], columns.end_ns[rows]
    held = _held(columns, rows, call)
    known = (call >= 0) & (columns.ts_ns[at] >= scope.start_ns)
    anchor = np.where(held, columns.ts_ns[at], columns.end_ns[at])
    _, stream = np.unique(columns.stream[rows], return_inverse=True)
    stream = stream.ravel().astype(np.int64)
    order = np.lexsort((start, stream))
    # On a stream what starts later was issued later, whatever the record of its call says; of what has none it is only
    # known that it was issued before what follows it, and before it ran.
    linked, sorted_streams = (call >= 0)[order], stream[order]
    bound = np.where(linked, anchor[order], start[order])
    bound[~linked] = -_rising(-bound[::-1], -sorted_streams[::-1])[::-1][~linked]
    anchor[order] = _rising(np.maximum(bound, scope.start_ns), sorted_streams)
    known[order] |= ~linked & _any_before(linked, sorted_streams)
    order = np.lexsort((start, anchor))
    return Device(
        row=rows[order],
        stream=stream[order],
        start=start[order],
        end=end[order],
        anchor=np.minimum(anchor[order], scope.end_ns),
        issued=known[order],
        call=call[order],
        held=held[order],
    )


def _rising(values: I64, stream: I64) -> I64:
    """The running maximum within each stream; ``stream`` is sorted."""
    if not len(values):
        return values
    low = int(values.min())
    shift = stream * (int(values.max()) - low + 1)
    out: I64 = np.maximum.accumulate(values - low + shift) - shift + low
    return out


def _any_before(chosen: Bools, stream: I64) -> Bools:
    """Whether any event before on the same stream is chosen; ``stream`` is sorted."""
    count: I64 = np.cumsum(chosen) - chosen
    first = np.r_[True, stream[1:] != stream[:-1]] if len(stream) else np.zeros(0, np.bool_)
    found: Bools = count > np.maximum.accumulate(np.where(first, count, 0))
    return found


def _held(columns: TraceColumns, rows: I64, call: I64) -> Bools:
    """Which copies hold their call until they are done: it ends after them, and pageable ones to the host always do."""
    at = np.maximum(call, 0)
    copies = (columns.category[rows] == Category.MEMCPY) & (call >= 0)
    late = columns.end_ns[at] >= columns.end_ns[rows]
    long = columns.dur_ns[at] >= BLOCKING_CALL_NS
    held: Bools = copies & late & long
    places = np.flatnonzero(copies & late & ~long)
    read = rows[places]
    held[places] = (directions(columns, read) == TO_HOST) & are_pageable(columns, read)
    return held


class Edges(msgspec.Struct, frozen=True):
    """How long after what each event starts; float64 ns, see ``Graph``."""

    issue_ns: F64
    gap_ns: F64
    wait_event: I64
    wait_for: I64
    wait_ns: F64
    latency_ns: float


def edges_of(device: Device, waited: list[tuple[int, int]]) -> Edges:
    """The weights of launches, streams and waits, so that what the trace explains is replayed as it was.

    The edge that decided when an event started gets what was measured, up to what such an edge can take; the others
    get the least, and never more than would delay it.
    """
    count = len(device)
    before = _previous(device.stream)
    previous_end = np.where(before >= 0, device.end[np.maximum(before, 0)], np.iinfo(np.int64).min // 4)
    idle = device.issued & (device.anchor > previous_end)
    latency = (device.start - device.anchor).astype(np.float64)
    pause = (device.start - previous_end).astype(np.float64)
    least_latency, longest_latency = _typical(latency[idle & ~device.held], 0.0, LONGEST_LATENCY_NS)
    queued = ~idle & (before >= 0)
    least_pause, longest_pause = _typical(pause[queued], USUAL_PAUSE_NS, LONGEST_PAUSE_NS)
    late = np.minimum(latency - max(least_latency, 0.0), pause - least_pause) > _EXPLAINED_NS
    waits = {**_inferred(device, late, previous_end), **dict.fromkeys(waited)}
    pairs = np.array(sorted(waits), dtype=np.int64).reshape(-1, 2)
    since = (device.start[pairs[:, 0]] - device.end[pairs[:, 1]]).astype(np.float64)
    pairs, since = pairs[since >= 0], since[since >= 0]
    by_wait = np.full(count, np.inf)
    np.minimum.at(by_wait, pairs[:, 0], since)
    # Of the edges the one that promises the latest start decided.
    promise = np.stack([least_latency - latency, least_pause - pause, least_pause - by_wait])
    promise[0, ~device.issued] = NEVER
    decided = promise.argmax(axis=0)
    longest = np.where(device.held, np.inf, longest_latency)
    issue = np.minimum(latency, np.where(decided == 0, longest, least_latency))
    first = (before < 0) & ~device.issued
    issue = np.where(device.issued, issue, np.where(first, latency, NEVER))
    gap = np.where(before >= 0, np.minimum(pause, np.where(decided == 1, longest_pause, least_pause)), 0.0)
    return Edges(
        issue_ns=issue,
        gap_ns=np.where(np.isfinite(gap), gap, 0.0),
        wait_event=pairs[:, 0],
        wait_for=pairs[:, 1],
        wait_ns=np.minimum(since, np.where(decided[pairs[:, 0]] == 2, RELEASE_NS, least_pause)),
        latency_ns=max(least_latency, 0.0),
    )


def _previous(stream: I64) -> I64:
    """``(n_events,)`` the event before on the same stream, -1 for the first."""
    order = np.argsort(stream, kind="stable")
    before = np.full(len(stream), -1, dtype=np.int64)
    same = stream[order][1:] == stream[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before


def _typical(values: F64, usual_ns: float, slack_ns: float) -> tuple[float, float]:
    """The least of such weights and the longest that is believed; without any the usual one, and the slack."""
    if not len(values):
        return usual_ns, usual_ns + slack_ns
    middle = float(np.median(values))
    return float(np.quantile(values, 0.05)), LONGEST_RATIO * max(middle, 0.0) + slack_ns


def _inferred(device: Device, late: Bools, previous_end: I64) -> dict[tuple[int, int], None]:
    """Events that began just as one of another stream ended, and that nothing else made wait."""
    by_end = np.argsort(device.end, kind="stable")
    events = np.flatnonzero(late)
    place = np.searchsorted(device.end[by_end], device.start[events], side="right") - 1
    events, place = events[place >= 0], place[place >= 0]
    found = by_end[place]
    ended = device.end[found]
    released = (device.start[events] - ended <= RELEASE_NS) & (device.stream[found] != device.stream[events])
    released &= (found < events) & (ended > previous_end[events]) & (ended > device.anchor[events])
    return dict.fromkeys(zip(events[released].tolist(), found[released].tolist(), strict=True))
