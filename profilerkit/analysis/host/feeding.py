"""When a thread gets its next batch, and which part of that is reading, preparing, handing over, or only waiting."""

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.host.names import QUIET_NS, HostNames
from profilerkit.analysis.intervals import (
    NO_SEGMENTS,
    Segments,
    Spans,
    covered,
    innermost_owner,
    intersect,
    paint,
    positive,
    subtract,
    union,
    with_label,
)
from profilerkit.model.step import leaf
from profilerkit.trace.columns import I64, Bools, Category, TraceColumns

DOMINANT_RATIO = 0.5  #: a frame belongs to the chain of calls that holds a wait when it holds this much of it
SHOWN_FRAMES = 3  #: innermost frames of that chain that are shown


class Feeding(msgspec.Struct, frozen=True):
    """How one thread is fed."""

    rows: I64
    segments: Segments


NOT_FED = Feeding(np.empty(0, dtype=np.int64), NO_SEGMENTS)


def feeding(columns: TraceColumns, names: HostNames, own: I64, issues: I64) -> Feeding:
    """When the thread of the rows ``own`` gets its batches.

    Loader events and phases named for it say so; other annotations and frames with such a name are believed when no
    work is issued in them, for a loop's own ``__next__`` may hold the whole step. So are loader events outside of all
    fetches that capture marked: anyone can give a range such a name.
    """
    own = own[columns.dur_ns[own] > 0]
    name, category = columns.name[own], columns.category[own]
    marked = np.isin(category, (Category.ANNOTATION, Category.CPU_OP)) & names.loader[name]
    timed = union(*_edges(columns, own[marked & names.timed[name]]))
    doubted = marked & ~covered(timed, columns.ts_ns[own]) if len(timed) else np.zeros_like(marked)
    marked &= ~doubted
    feeds = np.isin(category, (Category.ANNOTATION, Category.PYTHON)) & names.feeds[name] & ~marked
    maybe = own[feeds | doubted]
    start, end = _edges(columns, maybe)
    issued = np.searchsorted(issues, end) > np.searchsorted(issues, start)
    rows = np.r_[own[marked], maybe[~issued]]
    if not len(rows):
        return NOT_FED
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    spans = union(*_edges(columns, rows))
    return Feeding(rows, split(columns, names, rows, spans, own))


def inferred_input(
    columns: TraceColumns, names: HostNames, thread: int, leads: Spans, between: Spans, issues: I64
) -> Spans:
    """When a thread gets its batches, where no event says so: between the ranges of the steps, and up to batch copies.

    Frames tell what the thread does, and operators what it does up to a copy: with them only work that can make a batch
    shows one. What stays unexplained is input only where it lasts longer than a gap between two calls.
    """
    # Where neither was recorded of the thread nothing shows that it runs Python.
    own = columns.category[(columns.thread == thread) & (columns.dur_ns > 0)]
    has_operators, has_frames = (bool((own == kind).any()) for kind in (Category.CPU_OP, Category.PYTHON))
    pauses = _quiet(columns, thread, between, issues)
    if not has_operators and not has_frames:
        long = leads.end - leads.start > QUIET_NS
        leads = Spans(leads.start[long], leads.end[long])
    elif has_frames:
        leads, pauses = (shown_by_work(columns, names, thread, spans) for spans in (leads, pauses))
    else:
        leads = shown_by_work(columns, names, thread, leads)
    return union(np.r_[leads.start, pauses.start], np.r_[leads.end, pauses.end])


def made_on_host(columns: TraceColumns, names: HostNames, thread: int) -> list[Segments]:
    """What a thread did beside issuing work, of a run whose device was not recorded, as layers.

    A long operator that calls no runtime computes on the host; where the next call copies, it made the batch. Operators
    that hand a value to Python, and copies that return late, wait for the device.
    """
    own = np.flatnonzero(columns.thread == thread)
    name, category, lasting = columns.name[own], columns.category[own], columns.dur_ns[own] >= QUIET_NS
    calls = own[category == Category.RUNTIME]
    calls = calls[np.argsort(columns.ts_ns[calls], kind="stable")]
    rows = own[(category == Category.CPU_OP) & lasting & ~names.moves_no_data[name]]
    before, after = (np.searchsorted(columns.ts_ns[calls], edge) for edge in _edges(columns, rows))
    made = (before == after) & (after < len(calls))
    made[made] = names.copy_call[columns.name[calls[after[made]]]]
    batches = calls[after[made]]
    copies = own[lasting & (category == Category.RUNTIME) & names.copy_call[name]]
    waits = np.r_[np.setdiff1d(copies, batches), own[(category == Category.CPU_OP) & names.reads[name]]]
    parts = ("input.prep", rows[made]), ("input.h2d", batches), ("sync.drain", waits)
    return [with_label(union(*_edges(columns, which)), leaf(part)) for part, which in parts]


def _quiet(columns: TraceColumns, thread: int, between: Spans, issues: I64) -> Spans:
    """Stretches between the steps in which the thread makes no call and nobody launches; none up to the last range."""
    own = (columns.thread == thread) & (columns.dur_ns > 0)
    ranges = np.flatnonzero(own & columns.is_a(Category.ANNOTATION))
    ranges = ranges[covered(between, columns.ts_ns[ranges])]
    place = np.searchsorted(between.start, columns.ts_ns[ranges], side="right") - 1
    start = between.start.copy()
    np.maximum.at(start, place, columns.end_ns[ranges])
    rest = positive(start, between.end)
    calls = np.r_[np.flatnonzero(own & columns.is_a(Category.RUNTIME)), issues]
    quiet = subtract(rest, union(columns.ts_ns[calls], columns.end_ns[calls]))
    long = quiet.end - quiet.start > QUIET_NS
    return Spans(quiet.start[long], quiet.end[long])


def shown_by_work(columns: TraceColumns, names: HostNames, thread: int, leads: Spans) -> Spans:
    """Which of ``leads``, up to batch copies, hold work that can make a batch; plain Python there may be anything.

    Such work is an operator outside the one that copies, unless it only allocates or looks at memory, or a frame known
    to read, prepare or hand over. What of the Python before it is part of getting the batch, nothing tells.
    """
    if not len(leads):
        return leads
    own = np.flatnonzero(columns.thread == thread)
    start, end = _edges(columns, own)
    working = (columns.category[own] == Category.CPU_OP) & ~names.moves_no_data[columns.name[own]]
    outermost = _outermost(start[working], end[working])
    last = np.maximum(np.searchsorted(outermost.start, leads.end, side="right") - 1, 0)
    begun = leads.end
    if len(outermost):
        copies = (outermost.start[last] <= leads.end) & (outermost.end[last] > leads.end)
        begun = np.where(copies, outermost.start[last], leads.end)
    works = np.searchsorted(outermost.start, begun) > np.searchsorted(outermost.start, leads.start)
    told = (columns.category[own] == Category.PYTHON) & (names.feeding[columns.name[own]] >= 0)
    ends = np.sort(end[told & covered(leads, start)])
    works |= np.searchsorted(ends, leads.end, side="right") > np.searchsorted(ends, leads.start)
    return Spans(leads.start[works], leads.end[works])


def _outermost(start: I64, end: I64) -> Spans:
    """The events of one thread that lie in no other, by start."""
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    reach = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1]] if len(end) else end
    keep = start >= reach
    return Spans(start[keep], end[keep])


def split(columns: TraceColumns, names: HostNames, rows: I64, spans: Spans, own: I64) -> Segments:
    """Input leaves of ``spans``: those of the innermost named frame or operator; what else computes is preparation.

    With worker processes the thread's own operators and frames say nothing of what it waits for, except for frames of
    the hand-over. A stretch that nothing names is a wait whose cause is not known.
    """
    remote = union(*_edges(columns, rows[names.multi_process[columns.name[rows]]]))
    local = subtract(spans, remote)
    start = columns.ts_ns[own]
    told = own[
        ((columns.category[own] == Category.PYTHON) & covered(spans, start))
        | ((columns.category[own] == Category.CPU_OP) & covered(local, start))
    ]
    name, category = columns.name[told], columns.category[told]
    kind = names.feeding[name].astype(np.int64)
    named = innermost_owner(*_edges(columns, told[kind >= 0]), kind[kind >= 0])
    frames = told[category == Category.PYTHON]
    code = innermost_owner(*_edges(columns, frames), names.runs_python[columns.name[frames]].astype(np.int64)).only(1)
    operators = union(*_edges(columns, told[(category == Category.CPU_OP) & ~names.loader[name]]))
    layers = [
        with_label(intersect(remote, named.only(leaf("input.ipc"))), leaf("input.ipc")),
        with_label(remote, leaf("input.wait")),
        named,
        with_label(operators, leaf("input.prep")),
        with_label(code, leaf("input.prep")),
        with_label(local, leaf("input.wait")),
    ]
    return paint(spans, layers)


def dominant_frames(
    columns: TraceColumns, thread: int, spans: Spans, kept: Bools | None = None
) -> tuple[tuple[str, ...], float]:
    """The innermost frames of the chain of calls that holds most of ``spans``, and their share.

    Frames come outer first, at most ``SHOWN_FRAMES``; none, with 0.0, where no frame holds ``DOMINANT_RATIO``. Of the
    names that are ``kept``, a mask over ``columns.strings``, the innermost is always among them.
    """
    if not len(spans):
        return (), 0.0
    frames = np.flatnonzero((columns.category == Category.PYTHON) & (columns.thread == thread))
    frames = frames[covered(spans, columns.ts_ns[frames])]
    least = DOMINANT_RATIO * spans.total_ns
    name, count = columns.name[frames], len(columns.strings)
    start, end = _edges(columns, frames)
    chain = []
    for candidate in np.flatnonzero(np.bincount(name, weights=end - start, minlength=count) >= least).tolist():
        own = np.flatnonzero(name == candidate)
        held = intersect(spans, union(start[own], end[own])).total_ns
        if held >= least:
            longest = own[(end - start)[own].argmax()]
            depth = int(((start <= start[longest]) & (end >= end[longest])).sum())
            chain.append((depth, columns.strings[candidate], held / spans.total_ns, candidate))
    chain.sort()
    shown = chain[-SHOWN_FRAMES:]
    wanted = [entry for entry in chain if kept is not None and kept[entry[-1]]]
    if wanted and wanted[-1] not in shown:
        shown = [wanted[-1], *shown[1:]]
    return tuple(entry[1] for entry in shown), chain[-1][2] if chain else 0.0


def _edges(columns: TraceColumns, rows: I64 | npt.NDArray[np.intp]) -> tuple[I64, I64]:
    start = columns.ts_ns[rows]
    return start, start + columns.dur_ns[rows]
