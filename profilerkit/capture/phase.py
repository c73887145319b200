"""Follow what each thread is doing: fetching, or inside named phases, which are recorded."""

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns

from profilerkit.capture.clocks import Moment, ThreadClock
from profilerkit.capture.guard import Guard
from profilerkit.rundir.layout import EVALUATION, EventKind
from profilerkit.rundir.writer import Record


class ThreadState:
    """What a thread is doing.

    Attributes:
        fetching: inside a fetch, so that a wrapped DataLoader is not counted twice.
        began: the thread's clocks when the making of the newest iterator began.
        ready_ns: when that iterator was made.
        phases: named phases of the user that are open.
        evaluations: those of them that are evaluations, by their names.
        clock: the thread's.
        nodes: that autograd had made on the thread as ``made_graphs`` was last asked; negative before.
    """

    __slots__ = ("began", "clock", "evaluations", "fetching", "nodes", "phases", "ready_ns")

    def __init__(self) -> None:
        self.fetching = False
        self.began: Moment = (0, 0, 0)
        self.ready_ns = 0
        self.phases = self.evaluations = 0
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
        self.doing = ThreadState()
        self._last_word = _LastWord(ended)


class _LastWord:
    """Goes with the thread that it belongs to."""

    __slots__ = ("_ended",)

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def __del__(self) -> None:
        self._ended()


_PHASE = int(EventKind.PHASE)
#: A block that is open: what the thread was doing that entered it, since when, and its span in the trace.
_Block = tuple[ThreadState, int, AbstractContextManager[object] | None]


class Phase:
    """A context manager that records one PHASE per block; it may be entered while it is open, and by many threads."""

    __slots__ = ("_guard", "_here", "_is_aside", "_name_id", "_open", "_record", "_span")

    def __init__(
        self,
        record: Callable[[Record], None],
        name: str,
        name_id: int,
        span: Callable[[], AbstractContextManager[object] | None],
        here: PerThread,
        guard: Guard,
    ) -> None:
        """``span`` makes the block's span in the trace that is being recorded, if there is one."""
        self._record = record
        self._name_id = name_id
        self._is_aside = EVALUATION.search(name) is not None
        self._span = span
        self._here = here
        self._guard = guard
        self._open: list[_Block] = []

    def __copy__(self) -> "Phase":
        """Itself, for what holds a phase and is copied."""
        return self

    def __deepcopy__(self, _copied: object) -> "Phase":
        """Itself."""
        return self

    def __reduce__(self) -> tuple[type[nullcontext[None]], tuple[()]]:
        """What is pickled records nothing: the process that reads it has no recording of ours."""
        return nullcontext, ()

    def __enter__(self) -> None:
        self._guard.call(self._begin)

    def __exit__(self, *_error: object) -> None:
        self._guard.call(self._end)

    def _begin(self) -> None:
        start_ns = perf_counter_ns()
        in_trace = self._span()
        if in_trace is not None:
            in_trace.__enter__()
        doing = self._here.doing
        doing.phases += 1
        if self._is_aside:
            doing.evaluations += 1
        self._open.append((doing, start_ns, in_trace))

    def _end(self) -> None:
        open_blocks = self._open
        if not open_blocks:
            return
        block = open_blocks.pop()
        if block[0] is not self._here.doing:
            block = self._ended_instead_of(block)
        doing, start_ns, in_trace = block
        doing.phases -= 1
        if self._is_aside:
            doing.evaluations -= 1
        self._record((_PHASE, 0, self._name_id, start_ns, perf_counter_ns() - start_ns, 0))
        if in_trace is not None:
            in_trace.__exit__(None, None, None)

    def _ended_instead_of(self, last: _Block) -> _Block:
        """The last block of this thread's own, else ``last``: a thread may end what another one began."""
        doing = self._here.doing
        self._open.append(last)
        block = next((block for block in reversed(self._open) if block[0] is doing), last)
        self._open.remove(block)
        return block
