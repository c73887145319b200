"""Records to bytes and back: msgpack as the types say, arrays as their raw bytes; what is read may be anybody's."""

import zlib
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeVar, cast, get_args

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import KINDS, CollectiveLog
from profilerkit.analysis.intervals import Segments, Spans
from profilerkit.analysis.parts import LEAVES
from profilerkit.analysis.trace_facts import TraceFacts

_R = TypeVar("_R")

#: Level 6 makes a summary a fifth smaller than level 1 and costs 2 ms (zlib 1.2.13).
_LEVEL = 6
#: A summary is compressed by 3 to 8, to a megabyte at most; a file that claims more than this is not one of ours.
MOST_BYTES = 16_000_000
#: Booleans, integers and floats: no array of objects is ever read.
_KINDS = "biuf"


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
