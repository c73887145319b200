"""What capture itself costs per step."""

import statistics
from time import perf_counter_ns

from profilerkit.capture.guard import Guard
from profilerkit.capture.loader import FetchTimer, WrappedIterator
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.writer import Record

_ROUNDS, _STEPS = 5, 100


class NoWindow:
    """A deep window that never opens."""

    def step_started(self, number: int) -> None:
        """Nothing to do."""

    def step_ended(self, number: int) -> None:
        """Nothing to do."""

    def step_cut(self) -> None:
        """Nothing to do."""


def self_ns_per_step() -> float:
    """Time of capture's records in a step of one fetch, one backward pass and one optimizer step, ns.

    The same code runs on a loop that does nothing; the median of five rounds leaves out a busy neighbour.
    What torch needs to call the hooks (about 2 µs per step) is not in it.
    """
    return statistics.median(_round() for _ in range(_ROUNDS))


def _round() -> float:
    records: list[Record] = []
    guard = Guard("the overhead measurement")
    tracker = StepTracker(records.append, NoWindow())
    timer = FetchTimer(records.append, tracker, guard)
    batches = range(_STEPS)
    start_ns = perf_counter_ns()
    for _ in WrappedIterator(iter(batches), batches, timer):
        tracker.adopt(tracker.thread)
        guard.call(tracker.backward_started)
        now_ns = perf_counter_ns()
        records.append((EventKind.BACKWARD, 0, 0, now_ns, perf_counter_ns() - now_ns, 0))
        guard.call(tracker.backward_ended, now_ns)
        tracker.adopt(tracker.thread)
        now_ns = perf_counter_ns()
        records.append((EventKind.OPTIMIZER, 0, 0, now_ns, perf_counter_ns() - now_ns, 0))
        guard.call(tracker.optimizer_stepped, 0, now_ns)
    return (perf_counter_ns() - start_ns) / _STEPS
