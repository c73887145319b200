"""What each thread is doing while a recording runs."""

import sys
import threading
from collections.abc import Callable

from profilerkit.capture.thread_clock import Moment, ThreadClock


class Doing:
    """What a thread is doing.

    Attributes:
        fetching: inside a fetch, so that a wrapped DataLoader is not counted twice.
        began: the thread's clocks when the making of the newest iterator began.
        ready_ns: when that iterator was made.
        phases: named phases of the user that are open.
        asides: those of them that are evaluations, by their names.
        clock: the thread's.
        nodes: that autograd had made on the thread as ``made_graphs`` was last asked; negative before.
    """

    __slots__ = ("asides", "began", "clock", "fetching", "nodes", "phases", "ready_ns")

    def __init__(self) -> None:
        self.fetching = False
        self.began: Moment = (0, 0, 0)
        self.ready_ns = 0
        self.phases = self.asides = 0
        self.clock = ThreadClock()
        self.nodes = -1

    def made_graphs(self) -> bool:
        """Whether autograd has recorded operators of the thread since this was last asked; without gradients none."""
        torch, before = sys.modules.get("torch"), self.nodes
        try:
            self.nodes = torch._C._autograd._get_sequence_nr() if torch is not None else -1  # torch 2.13 has it
        except AttributeError:
            self.nodes = -1
        return 0 <= before < self.nodes


class PerThread(threading.local):
    """What the calling thread is doing, found with one look for it."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """``ended`` is called by a thread at its end, before another one may be given its number."""
        self.doing = Doing()
        self._last_word = _LastWord(ended)


class _LastWord:
    """Goes with the thread that it belongs to."""

    __slots__ = ("_ended",)

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def __del__(self) -> None:
        self._ended()
