"""Facts of a trace made small, as bytes and back: of a rank that is only compared, its meetings with others."""

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeVar, cast, get_args

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import KINDS, CollectiveLog
from profilerkit.analysis.intervals import NO_SEGMENTS, Segments, Spans
from profilerkit.analysis.steps.find import TraceSteps, in_step
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model import fields_of, revise
from profilerkit.model.step import LEAVES
from profilerkit.trace.columns import I64

# A rank does not know which of its collectives were waits: that shows only beside the others. So what is kept depends
# on nothing but what all ranks have in common, the numbers of steps and collectives.

#: What is kept of a rank's collectives: 1,000 steps of four, or a few steps of many (a choice; 16 bytes each).
MOST_COLLECTIVES = 4_096
_ARRAYS = ("start", "end", "name", "kind", "title", "dtype", "channel", "sequence", "bytes", "measured", "size")
#: Multiples of it, modulo 1, lie evenly however many there are (Weyl): the order of steps, the largest first.
_GOLDEN = (math.sqrt(5) - 1) / 2


def spread(log: CollectiveLog | None, steps: TraceSteps) -> CollectiveLog | None:
    """The log with at most ``MOST_COLLECTIVES``, of whole steps spread over the trace: who is late when shows in them.

    Steps are taken in an order that depends on their numbers alone, while they fit: of two ranks the one that keeps
    fewer keeps a part of what the other keeps. Where the trace marks no steps, or does not number its collectives,
    the first are kept: those that lie side by side can still be matched by their order.
    """
    if log is None or len(log) <= MOST_COLLECTIVES:
        return log
    if steps.inferred or not _is_numbered(log):
        return _only(log, np.arange(MOST_COLLECTIVES))
    step = in_step(log.start, steps.start, steps.end)
    order = evenly(steps.index)
    held = np.cumsum(np.bincount(step[step >= 0], minlength=len(order))[order])
    fitting = max(int(np.searchsorted(held, MOST_COLLECTIVES, side="right")), 1)
    rows = np.flatnonzero(np.isin(step, order[:fitting]))[:MOST_COLLECTIVES]
    return _only(log, rows if len(rows) else np.arange(MOST_COLLECTIVES))


def stretch(log: CollectiveLog | None, steps: TraceSteps) -> CollectiveLog | None:
    """The log with ``MOST_COLLECTIVES`` side by side, the first of the judged steps: what one rank's time is told by.

    Where collectives are not numbered they are the first of all, so that those of two ranks can be matched by order.
    """
    if log is None or len(log) <= MOST_COLLECTIVES:
        return log
    judged = steps.start[steps.judged]
    first = int(np.searchsorted(log.start, judged[0])) if len(judged) and _is_numbered(log) else 0
    first = min(first, len(log) - MOST_COLLECTIVES)
    return _only(log, np.arange(first, first + MOST_COLLECTIVES))


def evenly(numbers: I64) -> I64:
    """Positions of step numbers in the order in which they are taken.

    >>> [3 + int(at) for at in evenly(np.arange(3, 13))]
    [8, 3, 11, 6, 9, 4, 12, 7, 10, 5]
    """
    order: I64 = np.argsort(-(numbers * _GOLDEN % 1.0), kind="stable")
    return order


def _is_numbered(log: CollectiveLog) -> bool:
    """Whether most collectives have a number in a process group with a name, by which they are matched."""
    named = np.array([bool(channel.group) for channel in log.channels], dtype=np.bool_)[log.channel]
    joint = log.joint
    return bool(joint.any()) and float((named & (log.sequence >= 0))[joint].mean()) > 0.5


def _only(log: CollectiveLog, rows: I64) -> CollectiveLog:
    return revise(log, **{name: getattr(log, name)[rows] for name in _ARRAYS})


_MOST_KERNELS, _FEWEST_KERNELS = 128, 24  #: kernels of the table, and of the shortest form of it


def smaller(facts: TraceFacts) -> Iterator[tuple[str, TraceFacts]]:
    """The facts, then with less and less, each with what was lost last in words: who asks takes the first that fits."""
    facts = revise(facts, kernels=facts.kernels[:_MOST_KERNELS])
    yield "", facts
    losses: tuple[tuple[str, Callable[[TraceFacts], TraceFacts]], ...] = (
        ("the lanes of the median step", lambda known: revise(known, lanes=None)),
        ("the order of parts between collectives", _coarse),
        ("the replay", lambda known: revise(known, replay=None)),
        ("most kernels", lambda known: revise(known, kernels=known.kernels[:_FEWEST_KERNELS])),
        ("later collectives", lambda known: revise(known, collectives=stretch(known.collectives, known.steps))),
    )
    for words, lose in losses:
        facts = lose(facts)
        yield words, facts


#: What is kept as it is of a rank that is only compared.
_COMPARED_BY = (
    *("meta", "damage", "n_events", "steps", "window", "n_steady", "properties", "input"),
    *("no_kernels", "compute", "memory", "device"),
)


def thin(facts: TraceFacts) -> TraceFacts:
    """What ranks are compared by: steps, sums of the parts, collectives."""
    return TraceFacts(
        **fields_of(facts, *_COMPARED_BY),
        partition=revise(facts.partition, segments=NO_SEGMENTS, alone=None, hidden=None),
        collectives=spread(facts.collectives, facts.steps),
        device_window=None,
        comm=None,
        parallelism=(),
        warmup=None,
        kernels=(),
    )


def _coarse(facts: TraceFacts) -> TraceFacts:
    """One segment for each part between two instants at which a step or a collective begins or ends."""
    log, segments = facts.collectives, facts.partition.segments
    if not len(segments):
        return facts
    instants = [facts.steps.start, facts.steps.end]
    if log is not None:
        instants += [log.start, log.end]
    return revise(facts, partition=revise(facts.partition, segments=coarse(segments, np.concatenate(instants))))


def coarse(segments: Segments, cuts: I64) -> Segments:
    """The segments joined by label within the spaces between ``cuts``: the same sums in each space, in another order.

    >>> parts = Segments(*(np.array(values) for values in ([0, 2, 3, 5], [2, 3, 5, 9], [1, 2, 1, 2])))
    >>> joined = coarse(parts, np.array([0, 6, 9]))
    >>> [values.tolist() for values in (joined.start, joined.end, joined.label)]
    [[0, 4, 6], [4, 6, 9], [1, 2, 2]]
    """
    edges = np.unique(np.concatenate([segments.start, segments.end, cuts]))
    start, end = edges[:-1], edges[1:]
    owner = np.searchsorted(segments.start, start, side="right") - 1
    inside = (owner >= 0) & (start < segments.end[np.maximum(owner, 0)])
    start, end, label = start[inside], end[inside], segments.label[owner[inside]]
    space = np.searchsorted(np.unique(cuts), start, side="right")
    # Pieces of one label in one space stand together, in the order in which the labels come first.
    order = np.lexsort((start, label, space))
    begins = np.r_[True, (np.diff(space[order]) != 0) | (np.diff(label[order]) != 0)]
    group = np.cumsum(begins) - 1
    length = np.bincount(group, weights=(end - start)[order].astype(np.float64)).round().astype(np.int64)
    first, of_space, of_label = start[order][begins], space[order][begins], label[order][begins]
    placed = np.lexsort((first, of_space))
    length, first, of_space, of_label = length[placed], first[placed], of_space[placed], of_label[placed]
    # The first of a space stands where the space's pieces begin; each of the others follows the one before.
    opens = np.r_[True, np.diff(of_space) != 0]
    before = np.cumsum(length) - length
    base = np.maximum.accumulate(np.where(opens, np.arange(len(length)), 0))
    at = first[base] + before - before[base]
    return Segments(at, at + length, of_label)


_R = TypeVar("_R")

_LEVEL = 6  #: level 6 makes a summary a fifth smaller than level 1 and costs 2 ms (zlib 1.2.13)
#: A summary is compressed by 3 to 8, to a megabyte at most; a file that claims more than this is not one of ours.
MOST_BYTES = 16_000_000
_KINDS = "biuf"  #: booleans, integers and floats: no array of objects is ever read


def encode(value: object) -> bytes:
    """A record of structs, arrays and plain values as compressed msgpack."""
    return zlib.compress(msgspec.msgpack.encode(value, enc_hook=_plain), _LEVEL)


def decode(data: bytes, kind: type[_R]) -> _R:
    """The record of that type; arrays are read-only.

    Raises:
        ValueError: the bytes are not such a record, or more than ``MOST_BYTES`` once they are unpacked.
    """
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise ValueError("it is truncated, or larger than any summary")
    try:
        record: _R = _decoder(cast("Any", kind)).decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # text that is no UTF-8 is a ValueError
        raise ValueError(f"its record is not of this version: {error}") from error
    return record


@lru_cache(maxsize=8)
def _decoder(kind: Any) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(kind, dec_hook=_array)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} cannot be written")


def _array(kind: type[Any], value: Any) -> Any:
    """An array of the annotated type, from what ``_plain`` made of one."""
    name, shape, data = value
    dtype = np.dtype(get_args(get_args(kind)[1])[0])
    # The name is compared, never made a type: numpy evaluates some of what it is given.
    if dtype.kind not in _KINDS or name != dtype.str:
        raise ValueError(f"an array of {str(name)[:20]} where {dtype} belongs")
    if any(not isinstance(size, int) or size < 0 for size in shape) or prod(shape) * dtype.itemsize != len(data):
        raise ValueError("an array whose shape does not fit its bytes")
    return np.frombuffer(data, dtype).reshape(shape)


def sound(facts: TraceFacts) -> TraceFacts:
    """The facts themselves."""
    steps, parts = facts.steps, facts.partition
    count = _alike((steps.index, steps.start, steps.end, steps.optimizes))
    if len(steps.state) != count or parts.per_step.shape != (count, len(LEAVES)):
        raise ValueError("its steps do not belong together")
    judged = int(steps.judged.sum())
    if judged != facts.n_steady or _in_order(facts.window) != judged:
        raise ValueError("its judged steps do not match its window")
    for table in (parts.alone, parts.hidden):
        if table is not None and table.shape != parts.per_step.shape:
            raise ValueError("its parts do not belong together")
    _in_order(parts.segments)
    _within(parts.segments.label, len(LEAVES), least=0)
    _in_order(parts.lead_in)
    if facts.collectives is not None:
        _sound_log(facts.collectives)
    return facts


def _sound_log(log: CollectiveLog) -> None:
    _alike((log.start, log.end, log.name, log.kind, log.title, log.dtype, log.channel, log.sequence))
    _alike((log.start, log.bytes, log.measured, log.size))
    _within(log.name, len(log.names), least=0)
    _within(log.title, len(log.names), least=0)
    _within(log.dtype, len(log.names), least=-1)
    _within(log.kind, len(KINDS), least=0)
    _within(log.channel, len(log.channels), least=0)
    if (log.end < log.start).any() or (log.start[1:] < log.start[:-1]).any():
        raise ValueError("its collectives are not in order")


def _alike(arrays: Sequence[Any]) -> int:
    lengths = {array.shape for array in arrays}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1:
        raise ValueError("its arrays differ in length")
    return len(arrays[0])


def _in_order(spans: Spans | Segments) -> int:
    count = _alike((spans.start, spans.end, spans.label) if isinstance(spans, Segments) else (spans.start, spans.end))
    if (spans.end < spans.start).any() or (spans.start[1:] < spans.end[:-1]).any():
        raise ValueError("its intervals are not in order")
    return count


def _within(ids: Any, count: int, *, least: int) -> None:
    if len(ids) and (int(np.min(ids)) < least or int(np.max(ids)) >= count):
        raise ValueError("an array holds an index out of range")
