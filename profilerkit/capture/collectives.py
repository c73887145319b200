"""Watches the collectives that Python calls: those of the user's code and of FSDP.

What is patched are the methods of ``ProcessGroup`` below the functions of ``torch.distributed``: ``torch.compile``
knows those functions by identity and would break the graph at a replacement (torch 2.13), and a function that was
imported by name is seen too. DDP and functional collectives go from C++ to the process group, past all of this.
"""

import sys
from collections.abc import Callable
from typing import Any

from profilerkit.capture.calls import Size, TimedCalls, not_compiled
from profilerkit.capture.guard import asked
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.writer import Record

_C10D = "torch.distributed.distributed_c10d"
#: Method of ``ProcessGroup`` to the function of ``torch.distributed`` that calls it, in this and in older releases.
_METHODS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "all_gather_single": "all_gather_single",
    "all_gather_single_coalesced": "all_gather_single",
    "_allgather_base": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter_single",
    "reduce_scatter_single_coalesced": "reduce_scatter_single",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "all_to_all_single": "all_to_all_single",
    "alltoall_base": "all_to_all_single",
    "alltoall": "all_to_all",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier",
}


class CollectiveWatch:
    """Records one COLLECTIVE per call with the host's time in it, and one per wait for it."""

    name = "collectives"
    needs: tuple[str, ...] = (_C10D,)

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker, name_id: Callable[[str], int]) -> None:
        self._calls = TimedCalls(EventKind.COLLECTIVE, record, tracker, name_id)

    def hang(self, patches: Patches) -> None:
        """Patch what this torch has."""
        for below in (asked, message_bytes, _side_bytes):  # what a replacement calls is not traced either
            not_compiled(below)
        c10d = sys.modules[_C10D]
        group, work = getattr(c10d, "ProcessGroup", None), getattr(c10d, "Work", None)
        for method, name in _METHODS.items() if group is not None else ():
            if method in group.__dict__:
                self._patch(patches, group, method, name, message_bytes)
        if work is not None:
            self._patch(patches, work, "wait", "wait", None)

    def _patch(self, patches: Patches, owner: Any, method: str, name: str, size: Size | None) -> None:
        patches.patch(owner, method, lambda original: self._calls.method(patches, original, name, size))

    def beat(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing is left to do."""

    def reason(self) -> str:
        """Why no collective was seen."""
        return "" if self._calls.seen else "no collective was called from Python; DDP's and compiled ones never are"


def message_bytes(sides: tuple[Any, ...]) -> int:
    """Bytes of the larger of a collective's two sides; -1 where there is none.

    The tensors come first, in lists or lists of lists; a collective in place has one side.
    """
    return max(map(_side_bytes, sides[:2]), default=-1)


def _side_bytes(side: Any) -> int:
    """Bytes of a tensor or of all in a list; -1 for anything else."""
    if isinstance(side, list):
        total = 0
        for item in side:
            total += _side_bytes(item)
        return total
    return getattr(side, "nbytes", -1)
