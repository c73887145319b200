"""Steps without a timer: the sequence of collectives that each step of training repeats."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.ranks.flight import FlightLog, common_calls

#: Times that a sequence must follow itself before it is a habit: the first step is never judged, and three show one.
FEWEST_REPEATS = 4
#: Share of the collectives that must lie in one such stretch: less of them may be what is done once, at the start.
MOST_OF_THEM = 0.5
#: The last collectives that are looked at: four times what torch's recorder holds by default. The search takes time
#: that grows with their square.
MOST_CALLS = 8_000


class Repetition(msgspec.Struct, frozen=True):
    """The steps of several ranks by what they repeat.

    Attributes:
        group: name and description of the process group whose collectives repeat. Hostile text.
        calls: collectives of the group in one step.
        starts: ``(n_ranks, n_steps + 1)`` int64 ns since the epoch: when each rank issued the first collective of each
            step; the last column is where the last step ends.
    """

    group: tuple[str, str]
    calls: int
    starts: I64


def find_repetition(logs: Sequence[FlightLog]) -> Repetition | None:
    """The steps that all ranks took, by the group that all have and that issued most; ``None`` without a clear period.

    The period is the shortest one in name and size that the collectives keep, call for call, over most of the dump. A
    step may be several iterations of the loop where those differ by turns, and part of one where it is made of equal
    parts. It begins, on every rank at the same collective, with the one that the longest silence comes before.

    Args:
        logs: per rank what its recorder held; at least one.
    """
    shared = [group for group in logs[0].groups if all(len(log.of(group)) for log in logs)]
    matched = [(group, common_calls({rank: (log, log.of(group)) for rank, log in enumerate(logs)})) for group in shared]
    if not matched:
        return None
    group, rows = max(matched, key=lambda entry: entry[1].shape[1])
    if not rows.shape[1]:
        return None
    rows = rows[:, -MOST_CALLS:]
    created = np.stack([log.created[own] for log, own in zip(logs, rows, strict=True)])
    labels = logs[0].labels(rows[0], {})
    silence = np.diff(created, axis=1, prepend=created[:, :1]).astype(np.float64).sum(axis=0)
    places = _places(labels, silence)
    if places is None:
        return None
    calls, first = places
    starts = created[:, first]
    # A clock that was set back meanwhile leaves no step its length.
    return Repetition(group, calls, starts) if (np.diff(starts, axis=1) > 0).all() else None


def _places(labels: I64, silence: npt.NDArray[np.float64]) -> tuple[int, I64] | None:
    """Length of what repeats, and where it stands; ``None`` where nothing does.

    >>> _places(np.array([9, 1, 2, 1, 2, 1, 2, 1, 2, 7, 1, 2]), np.array([0.0, 5.0, 1.0] * 4))
    (2, array([ 1,  3,  5,  7, 10]))
    """
    stretch = _period(labels)
    if stretch is None:
        return None
    length, start, end = stretch
    gaps = [float(np.median(silence[start + shift : end : length])) for shift in range(length)]
    begin = start + int(np.argmax(gaps))
    if begin + 2 * length > end:
        return None
    pattern = labels[begin : begin + length]
    windows = np.lib.stride_tricks.sliding_window_view(labels, length)
    taken: list[int] = []
    free = 0
    for place in np.flatnonzero((windows == pattern).all(axis=1)).tolist():
        # Within the stretch the steps follow each other; before and behind it they stand wherever they do.
        if place >= free and not place < begin < place + length:
            taken.append(place)
            free = place + length
    return length, np.array(taken, dtype=np.int64)


def _period(labels: I64) -> tuple[int, int, int] | None:
    """The shortest period that most of the labels keep without a break, and the bounds of that stretch."""
    count = len(labels)
    for length in range(1, count // FEWEST_REPEATS + 1):
        breaks = np.flatnonzero(labels[length:] != labels[:-length])
        edges = np.concatenate([[-1], breaks, [count - length]])
        longest = int(np.diff(edges).argmax())
        start, end = int(edges[longest]) + 1, int(edges[longest + 1]) + length
        if end - start >= max(MOST_OF_THEM * count, FEWEST_REPEATS * length):
            return length, start, end
    return None
