"""Which process of an export is read: a trace is one rank's, an export may hold all processes of a machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from profilerkit.trace.columns import I64
from profilerkit.trace.nsys.tables import Rows

#: Processes whose devices worked this much of the longest time count as equally busy: of those the one on the device
#: with the lowest number is read, so that of two exports of one job the same rank is.
_EQUALLY_BUSY = 0.9
_NAMED = 4


@dataclass(frozen=True, slots=True)
class Chosen:
    """The process that is read.

    Attributes:
        pid: its number; -1 when the export does not tell its processes apart.
        notes: what that leaves out, one sentence each.
    """

    pid: int
    notes: tuple[str, ...]

    def of(self, rows: Rows) -> Rows:
        """Return its rows, and those of no known process."""
        return rows if self.pid < 0 else rows.only((rows["pid"] == self.pid) | (rows["pid"] < 0))


def choose(device: Sequence[Rows], host: Sequence[Rows]) -> Chosen:
    """Return the process whose devices worked longest; without any the one with most rows on the host.

    Args:
        device: what ran on devices.
        host: calls and ranges, the most telling first.
    """
    worked, lowest = _work(device)
    if worked:
        longest = max(worked.values())
        busy = [pid for pid, time_ns in worked.items() if time_ns >= _EQUALLY_BUSY * longest]
        pid = min(busy, key=lambda pid: (lowest[pid], pid))
        return Chosen(pid, (*_others(pid, lowest), *_several_devices(pid, device)))
    notes: tuple[str, ...] = ()
    if any(len(rows) for rows in device):
        notes = ("it does not say which process the work of the GPUs is of: all of it is read as one process'",)
    for rows in host:
        pids, counts = np.unique(rows["pid"][rows["pid"] >= 0], return_counts=True)
        if len(pids):
            return Chosen(int(pids[counts.argmax()]), notes if len(pids) > 1 else ())
    return Chosen(-1, ())


def _work(device: Sequence[Rows]) -> tuple[Mapping[int, float], Mapping[int, int]]:
    """Return the time of each known process on devices, ns, and the lowest number of a device it used."""
    pid, time_ns, number = (np.concatenate(values) for values in zip(*map(_pid_time_device, device), strict=True))
    known = pid >= 0
    pids, place = np.unique(pid[known], return_inverse=True)
    worked = np.bincount(place, weights=time_ns[known], minlength=len(pids))
    lowest = np.full(len(pids), np.iinfo(np.int64).max)
    np.minimum.at(lowest, place, number[known])
    return dict(zip(pids.tolist(), worked.tolist(), strict=True)), dict(
        zip(pids.tolist(), lowest.tolist(), strict=True)
    )


def _pid_time_device(rows: Rows) -> tuple[I64, I64, I64]:
    return rows["pid"], rows["end"] - rows["start"], rows["deviceId"]


def _others(pid: int, devices: Mapping[int, int]) -> tuple[str, ...]:
    if len(devices) < 2:
        return ()
    left = sorted((device, other) for other, device in devices.items() if other != pid)
    listed = ", ".join(f"{other} (GPU {device})" for device, other in left[:_NAMED])
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return (
        f"it holds {len(devices)} processes that used a GPU, and one rank is judged: process {pid} (GPU {devices[pid]})"
        f" was read, {listed}{more} left out; record each rank into a file of its own to have all compared",
    )


def _several_devices(pid: int, device: Sequence[Rows]) -> tuple[str, ...]:
    used = np.unique(np.concatenate([rows["deviceId"][rows["pid"] == pid] for rows in device]))
    if len(used) < 2:
        return ()
    listed = ", ".join(map(str, used[:_NAMED].tolist())) + (" …" if len(used) > _NAMED else "")
    return (
        f"process {pid} used {len(used)} GPUs ({listed}{' …' if len(used) > _NAMED else ''}); the busiest is judged",
    )
