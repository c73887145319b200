"""Asks NVML, where every query may fail alone: what a device cannot say is not asked again."""

import logging
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any, NamedTuple

_logger = logging.getLogger(__name__)

#: NVML's codes after which a query will never be answered: invalid argument, not supported, no permission, function
#: not found, wrong versions of library or argument, deprecated (nvml.h, nvmlReturn_t).
REFUSED = frozenset((2, 3, 4, 13, 18, 25, 26))
#: The device fell off the bus, or waits for a reset.
_LOST = frozenset((15, 16))

#: A query that took this long in each of its first trials is asked once a minute: it would cost more than all others
#: together. Slow ones also hold the driver's lock, on which kernel launches of every process wait
#: (flightlessmango/MangoHud#2104: a list of processes took 4.5 ms, and asking 40 times per second blocked the threads
#: that submit work). Processor time shows those that compute. Those that sleep in the driver are shown by the time that
#: passes, as far as it is longer than any wait for Python's lock on the way back, 5 ms or more beside a busy training:
#: after each trial the lock is given away and waited for once more.
_SLOW_NS = 1_000_000
_TRIALS = 5
_PAUSE_NS = 60_000_000_000


class _Trial(NamedTuple):
    """Holds one of the first calls of a query, ns: processor time, time that passed, and what the lock then took."""

    cpu_ns: int
    wall_ns: int
    lock_ns: int


class Calls:
    """The functions of ``pynvml`` with their failures as ``None``.

    Attributes:
        nvml: the module, for its constants.
        lost: what NVML said when the device was lost; empty until then. Nothing is asked from then on.
    """

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.lost = ""
        self._refused: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._tried: dict[tuple[Any, ...], list[_Trial]] = {}
        self._paused_until_ns: dict[tuple[Any, ...], int] = {}

    def ask(self, function: str, *args: Any) -> Any:
        """The answer of ``pynvml``'s function; ``None`` when there is none, this time or ever."""
        key = (function, *map(_named, args))
        if key in self._refused or self.lost:
            return None
        if key in self._paused_until_ns and perf_counter_ns() < self._paused_until_ns[key]:
            return None
        tried = self._tried.setdefault(key, [])
        is_trial = len(tried) < _TRIALS
        began_ns, cpu_ns = (perf_counter_ns(), thread_time_ns()) if is_trial else (0, 0)
        try:
            answer = getattr(self.nvml, function)(*args)
        except self.nvml.NVMLError as error:
            if error.value in _LOST:
                self.lost = str(error)
            elif error.value in REFUSED:
                self._refused[key] = args
            return None
        except (AttributeError, TypeError):  # an older pynvml without the function or the argument
            self._refused[key] = args
            return None
        if is_trial:
            tried.append(_tried(began_ns, cpu_ns))
        if len(tried) == _TRIALS and _are_slow(tried):
            self._paused_until_ns[key] = perf_counter_ns() + _PAUSE_NS
        return answer

    def give_back(self, function: str, *args: Any) -> None:
        """Call what frees something, also after the device was lost."""
        try:
            getattr(self.nvml, function)(*args)
        except self.nvml.NVMLError as error:
            _logger.debug("%s failed: %s", function, error)


def _tried(began_ns: int, cpu_ns: int) -> _Trial:
    """Measure the trial that began at these times of the two clocks, and has just ended."""
    cpu_ns, ended_ns = thread_time_ns() - cpu_ns, perf_counter_ns()
    sleep(0)
    return _Trial(cpu_ns, ended_ns - began_ns, perf_counter_ns() - ended_ns)


def _are_slow(tried: list[_Trial]) -> bool:
    """Return whether a query with these trials is a slow one.

    >>> sleeps, waits = _Trial(10_000, 4_500_000, 20_000), _Trial(10_000, 5_100_000, 5_000_000)
    >>> _are_slow([sleeps, sleeps]), _are_slow([waits, waits])
    (True, False)
    """
    quickest_ns = min(trial.wall_ns for trial in tried) - max(trial.lock_ns for trial in tried)
    return max(quickest_ns, min(trial.cpu_ns for trial in tried)) >= _SLOW_NS


def _named(argument: Any) -> Any:
    """What tells an argument from others: pointers, which handles are, cannot be compared.

    Those of a refused query are kept, so that no other takes their place in memory.
    """
    return argument if argument is None or isinstance(argument, (int, bytes, tuple)) else id(argument)
