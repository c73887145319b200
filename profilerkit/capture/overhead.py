"""What capture itself costs per step."""

import statistics
import threading
from time import perf_counter_ns, thread_time_ns

from profilerkit.capture.guard import Guard
from profilerkit.capture.loader import FetchTimer
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.wrapped import WrappedIterator
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.writer import Record

_ROUNDS, _STEPS, _WORK_BYTES = 5, 50, 1 << 20
_BACKWARD, _OPTIMIZER = int(EventKind.BACKWARD), int(EventKind.OPTIMIZER)


class NoWindow:
    """A deep window that never opens."""

    def step_started(self, number: int) -> None:
        """Nothing to do."""

    def step_ended(self, number: int) -> None:
        """Nothing to do."""

    def step_cut(self) -> None:
        """Nothing to do."""

    def span(self, name: str) -> None:
        """Nothing to do."""


def self_ns_per_step() -> float:
    """Time capture adds to a step of one fetch, one backward pass and one optimizer step, ns.

    The difference between a loop with and without capture's code, both of which push it out of the caches in every
    step as real work does (warm, it is three times faster). The median of five rounds leaves out a busy neighbour.
    What torch needs to call two hooks is not in it.
    """
    return max(0.0, statistics.median(_recorded() - _bare() for _ in range(_ROUNDS)))


def _bare() -> float:
    work = _Work()
    start_ns = thread_time_ns()
    for _ in range(_STEPS):
        work.do()
        work.do()
    return (thread_time_ns() - start_ns) / _STEPS


def _recorded() -> float:
    work = _Work()
    records: list[Record] = []
    guard = Guard("the overhead measurement")
    tracker = StepTracker(records.append, NoWindow())
    timer = FetchTimer(records.append, tracker, guard, NoWindow().span)
    batches = range(_STEPS)
    start_ns = thread_time_ns()
    for _ in WrappedIterator(iter(batches), batches, timer):
        work.do()
        tracker.adopt(threading.get_ident())
        guard.call(tracker.backward_started)
        now_ns = perf_counter_ns()
        records.append((_BACKWARD, 0, 0, now_ns, perf_counter_ns() - now_ns, 0))
        guard.call(tracker.backward_ended, now_ns)
        work.do()
        tracker.adopt(threading.get_ident())
        now_ns = perf_counter_ns()
        records.append((_OPTIMIZER, 0, 0, now_ns, perf_counter_ns() - now_ns, 0))
        guard.call(tracker.optimizer_stepped, 0, now_ns)
    return (thread_time_ns() - start_ns) / _STEPS


class _Work:
    """Stands for the model: touches more memory than a second-level cache holds."""

    def __init__(self) -> None:
        self._from = bytes(_WORK_BYTES)
        self._to = bytearray(_WORK_BYTES)

    def do(self) -> None:
        """Push everything else out."""
        self._to[:] = self._from
