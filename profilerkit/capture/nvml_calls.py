"""Asks NVML, where every query may fail alone: what a device cannot say is not asked again."""

import ctypes
import logging
from time import perf_counter_ns
from typing import Any

_logger = logging.getLogger(__name__)

#: NVML's codes after which a query will never be answered: invalid argument, not supported, no permission, function
#: not found, wrong versions of library or argument, deprecated (nvml.h, nvmlReturn_t).
REFUSED = frozenset((2, 3, 4, 13, 18, 25, 26))
#: The device fell off the bus, or waits for a reset.
_LOST = frozenset((15, 16))

#: A query that takes longer than this, three times in a row, is asked once a minute. Slow ones hold the driver's lock,
#: on which kernel launches of every process wait (flightlessmango/MangoHud#2104: a list of processes took 4.5 ms, and
#: asking 40 times per second blocked the threads that submit work).
_SLOW_NS = 2_000_000
_STRIKES = 3
_PAUSE_NS = 60_000_000_000


class Calls:
    """The functions of ``pynvml`` with their failures as ``None``.

    Attributes:
        nvml: the module, for its constants.
        lost: what NVML said when the device was lost; empty until then. Nothing is asked from then on.
    """

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.lost = ""
        self._refused: set[tuple[Any, ...]] = set()
        self._strikes: dict[tuple[Any, ...], int] = {}
        self._paused_until_ns: dict[tuple[Any, ...], int] = {}

    def ask(self, function: str, *args: Any) -> Any:
        """The answer of ``pynvml``'s function; ``None`` when there is none, this time or ever."""
        key = (function, *map(_named, args))
        if key in self._refused or self.lost:
            return None
        began_ns = perf_counter_ns()
        if began_ns < self._paused_until_ns.get(key, 0):
            return None
        try:
            answer = getattr(self.nvml, function)(*args)
        except self.nvml.NVMLError as error:
            if error.value in _LOST:
                self.lost = str(error)
            elif error.value in REFUSED:
                self._refused.add(key)
            return None
        except (AttributeError, TypeError):  # an older pynvml without the function or the argument
            self._refused.add(key)
            return None
        self._judge(key, began_ns, perf_counter_ns())
        return answer

    def give_back(self, function: str, *args: Any) -> None:
        """Call what frees something, also after the device was lost."""
        try:
            getattr(self.nvml, function)(*args)
        except self.nvml.NVMLError as error:
            _logger.debug("%s failed: %s", function, error)

    def _judge(self, key: tuple[Any, ...], began_ns: int, ended_ns: int) -> None:
        if ended_ns - began_ns < _SLOW_NS:
            self._strikes.pop(key, None)
            return
        self._strikes[key] = self._strikes.get(key, 0) + 1
        if self._strikes[key] >= _STRIKES:
            self._paused_until_ns[key] = ended_ns + _PAUSE_NS


def _named(argument: Any) -> Any:
    """What tells an argument from others: a handle is a pointer, of which two of the same device are not equal."""
    if isinstance(argument, ctypes._Pointer):
        return ctypes.cast(argument, ctypes.c_void_p).value
    return ctypes.addressof(argument) if isinstance(argument, ctypes.Structure) else argument
