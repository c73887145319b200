"""Exact interval arithmetic on int64 nanoseconds: unions, cuts, owners, and painting by priority."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.trace.columns import I64, Bools

NO_LABEL = -1


class Spans(msgspec.Struct, frozen=True):
    """Disjoint intervals [start, end), sorted; both arrays ``(n,)`` int64 ns. Neighbours may touch."""

    start: I64
    end: I64

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total_ns(self) -> int:
        """Sum of the lengths."""
        return int((self.end - self.start).sum())


class Segments(Spans, frozen=True):
    """Disjoint labelled intervals, sorted by start; ``label`` is ``(n,)`` int64, ``NO_LABEL`` for none."""

    label: I64

    def only(self, *labels: int) -> Spans:
        """The intervals that carry any of ``labels``."""
        keep = np.zeros(len(self), dtype=np.bool_)
        for label in labels:
            keep |= self.label == label
        return Spans(self.start[keep], self.end[keep])


EMPTY = Spans(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
NO_SEGMENTS = Segments(EMPTY.start, EMPTY.end, EMPTY.start)


def union(start: I64, end: I64) -> Spans:
    """Merge overlapping and touching intervals; empty ones vanish.

    >>> merged = union(np.array([5, 0, 2]), np.array([7, 3, 4]))
    >>> merged.start.tolist(), merged.end.tolist(), merged.total_ns
    ([0, 5], [4, 7], 6)
    """
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.r_[True, start[1:] > reach[:-1]]
    return Spans(start[opens], reach[np.r_[opens[1:], True]])


def intersect(a: Spans, b: Spans) -> Spans:
    """Return what lies in both, cut where spans of ``a`` meet; both are disjoint and sorted.

    >>> both = intersect(Spans(np.array([0, 8]), np.array([4, 12])), Spans(np.array([2, 10]), np.array([9, 11])))
    >>> both.start.tolist(), both.end.tolist()
    ([2, 8, 10], [4, 9, 11])
    """
    opens = np.r_[True, b.start[1:] > b.end[:-1]][: len(b)]  # what touches is one piece
    b = Spans(b.start[opens], b.end[np.r_[opens[1:], True][: len(b)]])
    first = np.searchsorted(a.end, b.start, side="right")
    count = np.maximum(np.searchsorted(a.start, b.end, side="left") - first, 0)
    of_b = np.repeat(np.arange(len(b)), count)
    # The pieces of one of ``b`` lie in as many of ``a``, one after the other.
    of_a = np.arange(len(of_b)) + np.repeat(first - (np.cumsum(count) - count), count)
    return positive(np.maximum(a.start[of_a], b.start[of_b]), np.minimum(a.end[of_a], b.end[of_b]))


def subtract(a: Spans, b: Spans) -> Spans:
    """Return what lies in ``a`` and not in ``b``; both are disjoint and sorted.

    >>> left = subtract(Spans(np.array([0]), np.array([10])), Spans(np.array([2, 8]), np.array([4, 12])))
    >>> left.start.tolist(), left.end.tolist()
    ([0, 4], [2, 8])
    """
    if not len(a):
        return EMPTY
    low, high = np.minimum(a.start[0], b.start[:1]), np.maximum(a.end[-1], b.end[-1:])
    return intersect(a, positive(np.r_[low, b.end], np.r_[b.start, high])) if len(b) else a


def covered(spans: Spans, instants: I64) -> npt.NDArray[np.bool_]:
    """``(n,)`` mask of the instants that lie in any of the intervals.

    >>> covered(Spans(np.array([0, 8]), np.array([4, 9])), np.array([0, 4, 8])).tolist()
    [True, False, True]
    """
    edges = np.stack([spans.start, spans.end], axis=1).ravel()
    return (np.searchsorted(edges, instants, side="right") & 1).astype(np.bool_)


def index_at(spans: Spans, instants: I64) -> I64:
    """``(n,)`` index of the interval that each instant lies in, -1 for none; the intervals are disjoint and sorted."""
    if not len(spans):
        return np.full(len(instants), -1, dtype=np.int64)
    index = np.searchsorted(spans.start, instants, side="right") - 1
    index[instants >= spans.end[index]] = -1  # what precedes the first one is compared with the last
    return index


def time_within(spans: Spans, start: I64, end: I64) -> I64:
    """``(n,)`` ns of each interval that lies in ``spans``.

    >>> spans = Spans(np.array([0, 10]), np.array([5, 20]))
    >>> time_within(spans, np.array([3, 6]), np.array([12, 9])).tolist()
    [4, 0]
    """
    before = np.r_[0, np.cumsum(spans.end - spans.start)]

    def elapsed(at: I64) -> I64:
        index = np.searchsorted(spans.start, at, side="right")
        last = np.maximum(index - 1, 0)
        inside = np.minimum(at, spans.end[last]) - spans.start[last] if len(spans) else np.zeros_like(at)
        return np.where(index > 0, before[last] + inside, 0)

    found: I64 = elapsed(end) - elapsed(start)
    return found


def positive(start: I64, end: I64) -> Spans:
    """The intervals that have a length; they must be disjoint and sorted."""
    keep = end > start
    return Spans(start, end) if keep.all() else Spans(start[keep], end[keep])


def clip(spans: Spans, low_ns: int, high_ns: int) -> Spans:
    """The part of ``spans`` inside [low, high)."""
    return positive(np.maximum(spans.start, low_ns), np.minimum(spans.end, high_ns))


def with_label(spans: Spans, label: int) -> Segments:
    """The same intervals, all with one label."""
    return Segments(spans.start, spans.end, np.full(len(spans), label, dtype=np.int64))


def latest_end_owner(start: I64, end: I64, label: I64) -> Segments:
    """Where intervals overlap, the one that ends last owns the instant.

    Used for kernels on several streams: the one that ends last is the one the next kernel had to wait for. Of two with
    the same extent the lower label owns it, so that the order in the file does not matter.

    >>> owned = latest_end_owner(np.array([0, 2, 3]), np.array([10, 4, 12]), np.array([7, 8, 9]))
    >>> list(zip(owned.start.tolist(), owned.end.tolist(), owned.label.tolist()))
    [(0, 3, 7), (3, 12, 9)]
    """
    keep = end > start
    start, end, label = start[keep], end[keep], label[keep]
    if not len(start):
        return NO_SEGMENTS
    order = np.lexsort((label, end, start))
    start, end, label = start[order], end[order], label[order]
    reach = np.maximum.accumulate(end)
    extends = np.r_[True, end[1:] > reach[:-1]]
    owner = np.maximum.accumulate(np.where(extends, np.arange(len(start)), 0))
    stop = np.minimum(np.r_[start[1:], reach[-1]], reach)
    return joined(Segments(start, stop, label[owner]))


def innermost_owner(start: I64, end: I64, label: I64) -> Segments:
    """For nested intervals of one thread: the most deeply nested one owns the instant.

    Of two with the same extent the lower label counts as the inner one, so that the order in the file does not matter.
    Improperly nested input still gives a partition of the union; owners are then approximate.

    >>> owned = innermost_owner(np.array([0, 2, 6]), np.array([10, 4, 7]), np.array([1, 2, 3]))
    >>> list(zip(owned.start.tolist(), owned.end.tolist(), owned.label.tolist()))
    [(0, 2, 1), (2, 4, 2), (4, 6, 1), (6, 7, 3), (7, 10, 1)]
    """
    keep = end > start
    start, end, label = start[keep], end[keep], label[keep]
    count = len(start)
    if not count:
        return NO_SEGMENTS
    order = np.lexsort((-label, -end, start))
    start, end, label = start[order], end[order], label[order]
    time = np.concatenate([start, end])
    opens = np.r_[np.ones(count, dtype=np.int64), np.zeros(count, dtype=np.int64)]
    # At one instant ends come first, then starts with the outer interval first.
    sequence = np.lexsort((np.r_[np.arange(count), -np.arange(count)], opens, time))
    time, is_start = time[sequence], opens[sequence].astype(bool)
    row = np.r_[np.arange(count), np.full(count, -1)][sequence]
    depth = np.cumsum(np.where(is_start, 1, -1))
    position = np.arange(2 * count)
    key = depth * (2 * count) + position
    start_keys = key[is_start]  # the depth at a start boundary is the depth inside the interval it opens
    rank = np.argsort(start_keys, kind="stable")
    sorted_keys, sorted_rows = start_keys[rank], row[is_start][rank]
    found = np.searchsorted(sorted_keys, key, side="right") - 1
    owner = np.where(depth > 0, sorted_rows[np.maximum(found, 0)], -1)
    kept = (time[1:] > time[:-1]) & (owner[:-1] >= 0)
    return joined(Segments(time[:-1][kept], time[1:][kept], label[owner[:-1][kept]]))


def paint(window: Spans, layers: Sequence[Segments]) -> Segments:
    """Give every instant of ``window`` the label of the first layer that has one there, else ``NO_LABEL``.

    The result covers ``window`` exactly, is cut at the window's own boundaries (adjacent spans stay apart), and costs
    O(n log n) in all boundaries.

    >>> window = Spans(np.array([0]), np.array([10]))
    >>> top = Segments(np.array([4]), np.array([6]), np.array([1]))
    >>> base = Segments(np.array([0]), np.array([8]), np.array([2]))
    >>> painted = paint(window, [top, base])
    >>> list(zip(painted.start.tolist(), painted.end.tolist(), painted.label.tolist()))
    [(0, 4, 2), (4, 6, 1), (6, 8, 2), (8, 10, -1)]
    """
    if not len(window):
        return NO_SEGMENTS
    low, high = window.start[0], window.end[-1]
    layers = [layer for layer in layers if len(layer)]
    cuts = [window.start, window.end, *(edge for layer in layers for edge in (layer.start, layer.end))]
    # Runs in order, which a stable sort merges: np.unique hashes first since numpy 2.3, ten times slower on millions.
    ordered = np.sort(np.clip(np.concatenate(cuts), low, high), kind="stable")
    edges = ordered[np.r_[True, ordered[1:] != ordered[:-1]]]
    left, right = edges[:-1], edges[1:]
    inside = index_at(window, left)
    left, right, inside = left[inside >= 0], right[inside >= 0], inside[inside >= 0]
    label = np.full(len(left), NO_LABEL, dtype=np.int64)
    for layer in layers:
        open_rows = np.flatnonzero(label == NO_LABEL)
        at = index_at(layer, left[open_rows])
        label[open_rows] = np.where(at >= 0, layer.label[np.maximum(at, 0)], NO_LABEL)
    return joined(Segments(left, right, label), inside)


def joined(segments: Segments, piece: I64 | None = None) -> Segments:
    """The same labels, with touching neighbours of one label (and of the same ``piece``, where given) as one."""
    keep = segments.end > segments.start
    start, end, label = segments.start[keep], segments.end[keep], segments.label[keep]
    if not len(start):
        return NO_SEGMENTS
    changes = (label[1:] != label[:-1]) | (start[1:] != end[:-1])
    if piece is not None:
        piece = piece[keep]
        changes |= piece[1:] != piece[:-1]
    first = np.r_[True, changes]
    return Segments(start[first], end[np.r_[first[1:], True]], label[first])


def rows_of(segments: Segments, rows: Bools | slice) -> Segments:
    """Some of the segments."""
    return Segments(segments.start[rows], segments.end[rows], segments.label[rows])


def between(segments: Segments, low_ns: int, high_ns: int) -> Segments:
    """The segments that reach into [low, high); they are sorted."""
    first = np.searchsorted(segments.end, low_ns, side="right")
    after = np.searchsorted(segments.start, high_ns, side="left")
    return rows_of(segments, slice(int(first), int(after)))
