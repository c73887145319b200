"""Rises and falls of the memory in use, which stand for steps where none was recorded."""

import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.memory.allocator import told_growth
from profilerkit.model.memory import MemoryGrowth

#: A fall of this part of the deepest one ends a rise: freed temporaries within a forward pass are smaller (a choice).
DEEP_FALL = 0.5


def valleys(level: I64) -> I64:
    """Positions of the lowest value between one rise and the next; each at least ``DEEP_FALL`` of the deepest fall.

    >>> valleys(np.array([0, 9, 8, 9, 1, 9, 2, 9])).tolist()
    [4, 6]
    """
    deep = DEEP_FALL * float((np.maximum.accumulate(level) - level).max(initial=0))
    found: list[int] = []
    if deep <= 0:
        return np.zeros(0, dtype=np.int64)
    high, low, falling = int(level[0]), 0, False
    for place, value in enumerate(level.tolist()):
        if falling:
            low = place if value < level[low] else low
            if value - level[low] >= deep:
                found.append(low)
                falling, high = False, value
        else:
            high = max(high, value)
            if high - value >= deep:
                falling, low = True, place
    return np.array(found, dtype=np.int64)


def growth_of(level: I64, times_ns: I64, room_bytes: int | None) -> MemoryGrowth | None:
    """How the lowest memory in use grows from one rise to the next; ``None`` with fewer than eight of them.

    Args:
        level: ``(n_events,)`` int64 bytes in use after each event.
        times_ns: ``(n_events,)`` int64.
        room_bytes: that could still be had at the peak; ``None`` where it is not known.
    """
    low = valleys(level)
    if len(low) < 2:
        return None
    each_ns = float(times_ns[low[-1]] - times_ns[low[0]]) / (len(low) - 1)
    return told_growth("allocated", np.arange(len(low)), level[low], room_bytes, each_ns)
