"""Ask NVML, where every query may fail alone, and find this process's device by its UUID, never by its number.

NVML counts devices in the order of the bus, CUDA in an order of its own and only what ``CUDA_VISIBLE_DEVICES`` shows:
number 0 of one is seldom number 0 of the other.
"""

import logging
import sys
from dataclasses import dataclass
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any, NamedTuple

from profilerkit.capture.environment import cuda_device

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


@dataclass(frozen=True, slots=True)
class Device:
    """A device in NVML.

    Attributes:
        handle: what the process has: a device, or a MIG device of it.
        whole: the device that ``handle`` is, or is a part of.
        instance: number of the GPU instance of a MIG device; ``None`` for a whole one.
        uuid: of ``handle``.
        found_by: how it was told from the others.
    """

    handle: Any
    whole: Any
    instance: int | None
    uuid: str | None
    found_by: str


def hides_all(visible: str | None) -> bool:
    """Whether ``CUDA_VISIBLE_DEVICES`` leaves no device: CUDA stops at the first number that is none."""
    return visible is not None and visible.split(",")[0].strip() in ("", "-1")


class Finder:
    """Finds the device of this process, as soon as that can be known."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._known: list[tuple[Any, list[Any]]] | None = None

    def find(self, visible: str | None) -> tuple[Device | None, str]:
        """The device, or why it is not known: by CUDA's UUID once CUDA is in use, before that by ``visible``."""
        _, uuid = cuda_device()
        if uuid is not None:
            found = self._by_uuid((uuid, uuid.replace("GPU-", "MIG-", 1)), "the UUID of the device that CUDA uses")
            return found, "" if found is not None else f"NVML has no device with CUDA's UUID, {uuid}"
        entries = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
        if len(entries) == 1 and entries[0].startswith(("GPU-", "MIG-")):
            found = self._by_uuid((entries[0],), "the UUID in CUDA_VISIBLE_DEVICES")
            if found is not None:
                return found, ""
            return None, f"NVML has no device {entries[0]}, which CUDA_VISIBLE_DEVICES names"
        return self._only_one(entries)

    def _only_one(self, entries: list[str]) -> tuple[Device | None, str]:
        """The one device there is."""
        if "torch" not in sys.modules:
            return None, "torch was not imported"
        there = [one for device, parts in self._devices() for one in (parts or [device])]
        if len(there) == 1:
            return self._described(there[0], "the only device"), ""
        if not there:
            return None, "NVML sees no device"
        named = f"; CUDA_VISIBLE_DEVICES is {','.join(entries)}" if entries else ""
        return None, f"this process never used CUDA, and could use any of {len(there)} devices{named}"

    def _by_uuid(self, uuids: tuple[str, ...], found_by: str) -> Device | None:
        """The device with one of these UUIDs, or the only one whose UUID begins so: CUDA takes shortened ones."""
        for uuid in uuids:
            handle = self._calls.ask("nvmlDeviceGetHandleByUUID", uuid.encode())
            if handle is not None:
                return self._described(handle, found_by)
        everything = [one for device, parts in self._devices() for one in (device, *parts)]
        alike = [one for one in everything if (self._uuid(one) or "").startswith(uuids)]
        return self._described(alike[0], found_by) if len(alike) == 1 else None

    def _described(self, handle: Any, found_by: str) -> Device:
        ask, whole, instance = self._calls.ask, handle, None
        if ask("nvmlDeviceIsMigDeviceHandle", handle):
            instance = ask("nvmlDeviceGetGpuInstanceId", handle)
            whole = ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle
        return Device(handle, whole, instance, self._uuid(handle), found_by)

    def _devices(self) -> list[tuple[Any, list[Any]]]:
        """Handles of the whole devices, each with those of its MIG devices. Asked once: a handle may take 6 ms."""
        if self._known is None:
            ask = self._calls.ask
            handles = [ask("nvmlDeviceGetHandleByIndex", index) for index in range(ask("nvmlDeviceGetCount") or 0)]
            self._known = [(handle, self._parts(handle)) for handle in handles if handle is not None]
        return self._known

    def _parts(self, device: Any) -> list[Any]:
        """Handles of the MIG devices of one device; none where MIG is off."""
        ask = self._calls.ask
        mode = ask("nvmlDeviceGetMigMode", device)
        most = (ask("nvmlDeviceGetMaxMigDeviceCount", device) or 0) if mode and mode[0] else 0
        handles = [ask("nvmlDeviceGetMigDeviceHandleByIndex", device, index) for index in range(most)]
        return [handle for handle in handles if handle is not None]

    def _uuid(self, handle: Any) -> str | None:
        return text(self._calls.ask("nvmlDeviceGetUUID", handle))


def text(answer: str | bytes | None) -> str | None:
    """What a function of ``pynvml`` says: bytes until version 11.5, text since."""
    return answer.decode("ascii", "replace") if isinstance(answer, bytes) else answer
