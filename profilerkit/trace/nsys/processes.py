"""Which processes of an export trained: it may hold all those of a machine, and each that trained is a rank."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.trace.columns import I64
from profilerkit.trace.nsys.tables import Rows

#: Ranks of one job start about as many pieces of work on their devices, however long these take or wait. A process with
#: fewer than this share of the most does something else (a choice).
_SAME_WORK = 0.25
#: Machines have at most 16 GPUs; a hostile export any number of processes.
_MOST_PROCESSES = 64
_NAMED = 4


class Trained(msgspec.Struct, frozen=True):
    """The processes that are read.

    Attributes:
        pids: their numbers, rising; a single -1 when the export does not tell its processes apart.
        notes: what that leaves out, one sentence each.
    """

    pids: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def of(self, pid: int, rows: Rows) -> Rows:
        """Return the rows of one of them; the first also has those of no known process."""
        if pid < 0:
            return rows
        return rows.only((rows["pid"] == pid) | ((rows["pid"] < 0) & (pid == self.pids[0])))


def trained(device: Sequence[Rows], host: Sequence[Rows]) -> Trained:
    """Return the processes that used devices as training does; without any the one with most rows on the host.

    Args:
        device: what ran on devices.
        host: calls and ranges, the most telling first.
    """
    pid, number = (np.concatenate([rows[name] for rows in device]) for name in ("pid", "deviceId"))
    pids, counts = np.unique(pid[pid >= 0], return_counts=True)
    if len(pids):
        alike = counts >= _SAME_WORK * counts.max()
        alike[np.argsort(-counts, kind="stable")[_MOST_PROCESSES:]] = False
        several = [note for one in pids[alike].tolist() for note in _several_devices(one, number[pid == one])]
        return Trained(tuple(pids[alike].tolist()), (*_left_out(pids[~alike]), *several))
    notes: tuple[str, ...] = ()
    if len(pid):
        notes = ("it does not say which process the work of the GPUs is of: all of it is read as one process'",)
    for rows in host:
        pids, counts = np.unique(rows["pid"][rows["pid"] >= 0], return_counts=True)
        if len(pids):
            return Trained((int(pids[counts.argmax()]),), notes if len(pids) > 1 else ())
    return Trained((-1,))


def _left_out(pids: I64) -> tuple[str, ...]:
    if not len(pids):
        return ()
    return (f"processes that did less on a GPU were left out: {_listed(pids)}",)


def _several_devices(pid: int, numbers: I64) -> tuple[str, ...]:
    used = np.unique(numbers)
    if len(used) < 2:
        return ()
    return (f"process {pid} used {len(used)} GPUs ({_listed(used)}); the busiest is judged",)


def _listed(numbers: I64) -> str:
    return ", ".join(map(str, numbers[:_NAMED].tolist())) + (" …" if len(numbers) > _NAMED else "")
