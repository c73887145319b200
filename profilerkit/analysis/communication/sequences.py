"""The collectives of each channel as the ranks hold them, in order and with labels that are common to all."""

from collections.abc import Sequence as Several

import msgspec
import numpy as np

from profilerkit.analysis.communication.alignment import Sequence
from profilerkit.analysis.communication.log import Channel, CollectiveLog
from profilerkit.analysis.intervals import I64
from profilerkit.model.change import revise

#: Kinds whose members all move the same bytes, so that a difference in size is a difference in the collective.
_SAME_SIZE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
#: Kinds in which some member may leave before the others have all they need.
_ONE_SIDED = ("broadcast", "reduce", "gather", "scatter")
#: Collectives of one number that are told apart by their order (coalesced ones share a number).
_PER_NUMBER = 64


class RankLog(msgspec.Struct, frozen=True):
    """What matching needs of one rank.

    Attributes:
        name: for sentences: ``rank 2``.
        log: its collectives; ``None`` where none was seen.
        base_ns: what its clock counts from, ns since the epoch; ``None`` where the trace does not say.
    """

    name: str
    log: CollectiveLog | None
    base_ns: int | None = None


Members = dict[int, Sequence]


def sequences_of(ranks: Several[RankLog], delta: Several[int]) -> dict[Channel, Members]:
    """Channel to rank to its collectives, with labels that are common to all ranks."""
    labels: dict[tuple[str, int], int] = {}
    out: dict[Channel, Members] = {}
    for rank, entry in enumerate(ranks):
        log = entry.log
        if log is None:
            continue
        same_size = log.is_a(*_SAME_SIZE)
        pairs, which = np.unique(
            np.stack([log.name.astype(np.int64), np.where(same_size, log.bytes, -1)], axis=1),
            axis=0,
            return_inverse=True,
        )
        ids = [labels.setdefault((log.names[name], size), len(labels)) for name, size in pairs.tolist()]
        label = np.array(ids, dtype=np.int64)[which.ravel()]
        joint = log.joint
        for index, channel in enumerate(log.channels):
            rows = np.flatnonzero(joint & (log.channel == index))
            if not len(rows) and channel.group:
                rows = _of_a_pair(log, np.flatnonzero(log.channel == index), channel)
            if len(rows):
                out.setdefault(channel, {})[rank] = _sequence(log, rows, label, delta[rank])
    for members in out.values():
        if any(own.number is None for own in members.values()):
            members.update({rank: _unnumbered(own) for rank, own in members.items()})
    return out


def _of_a_pair(log: CollectiveLog, rows: I64, channel: Channel) -> I64:
    """The transfers between two known ranks or of a group of two, where a send meets its receive; else none."""
    return rows if channel.pair or (log.size[rows] == 2).all() else rows[:0]


def _sequence(log: CollectiveLog, rows: I64, label: I64, delta: int) -> Sequence:
    """The rows in order; with the group's numbers where most of them have one, those without left out.

    The numbers of transfers between two ranks are each rank's own count of all its transfers: they match nothing.
    """
    channel = log.channels[int(log.channel[rows[0]])]
    known = (log.sequence[rows] >= 0) & (log.sequence[rows] < np.iinfo(np.int64).max // _PER_NUMBER)
    number = None
    if channel.group and not channel.pair and known.mean() > 0.5:
        rows = rows[known]
        rows = rows[np.argsort(log.sequence[rows], kind="stable")]
        own = log.sequence[rows]
        first = np.searchsorted(own, own, side="left")
        number = own * _PER_NUMBER + np.minimum(np.arange(len(own)) - first, _PER_NUMBER - 1)
        rows, number = rows[np.r_[True, number[1:] > number[:-1]]], np.unique(number)
    together = ~log.is_a(*_ONE_SIDED)[rows]
    size = 2 if channel.pair else int(log.size[rows].max())
    return Sequence(
        rows=rows,
        end=log.end[rows] + delta,
        duration=(log.end - log.start)[rows],
        label=label[rows],
        together=together,
        number=number,
        unnamed=not channel.group and not log.on_host,
        size=size if size > 0 else None,
        on_host=log.on_host,
        between=not log.joint[rows[0]],
    )


def _unnumbered(own: Sequence) -> Sequence:
    """The same collectives by time alone.

    Collectives begin in one order on all ranks, and may end in any where several run at once; of transfers whose ranks
    are not told, which run both ways at once, the ranks share only the ends.
    """
    order = np.argsort(own.end if own.between else own.end - own.duration, kind="stable")
    ordered = {name: getattr(own, name)[order] for name in ("rows", "end", "duration", "label", "together")}
    return revise(own, number=None, **ordered)
