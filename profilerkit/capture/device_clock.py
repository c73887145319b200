"""Times the device's part of every step by CUDA events, which are read steps later and never waited for."""

import sys
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from profilerkit.capture.guard import Guard
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.writer import Record

_DEVICE, _CAUGHT_UP = int(EventKind.DEVICE), int(EventFlag.CAUGHT_UP)
#: Events under way at most: a host that is further ahead of its device loses the device's time of the steps between.
_MOST_EVENTS = 64
_NS_PER_MS = 1e6


class DeviceEvent(Protocol):
    """A mark in the device's queue, as ``torch.cuda.Event(enable_timing=True)``."""

    def record(self) -> None:
        """Put it at the end of the current stream's queue."""

    def query(self) -> bool:
        """Whether the device has reached it."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds of the device between this one and ``end``, both reached."""


class Device(Protocol):
    """What the clock needs of a device."""

    def in_use(self) -> bool:
        """Whether the process uses it."""

    def is_capturing(self) -> bool:
        """Whether the current stream captures a graph: an event that is queried then ruins the capture."""

    def current(self) -> int:
        """The number of the current device: events of two devices have no time between them."""

    def event(self) -> DeviceEvent:
        """A new event with timing."""


class CudaDevice:
    """The CUDA device of the calling thread; ROCm goes by the same names."""

    def in_use(self) -> bool:
        """Whether CUDA is initialised; it is never initialised here."""
        return cuda_in_use()

    def is_capturing(self) -> bool:
        """Whether the current stream captures a graph."""
        return bool(_cuda().is_current_stream_capturing())

    def current(self) -> int:
        """The number of the current device."""
        return int(_cuda().current_device())

    def event(self) -> DeviceEvent:
        """A new event with timing."""
        made: DeviceEvent = _cuda().Event(enable_timing=True)
        return made


def cuda_in_use() -> bool:
    """Whether CUDA is initialised in this process."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(getattr(cuda, "is_initialized", bool)())


def _cuda() -> Any:
    return sys.modules["torch.cuda"]


class _Mark(NamedTuple):
    """An event at the end of a step, and what the host knew of the step."""

    event: DeviceEvent
    device: int
    number: int
    start_ns: int
    flags: int


class DeviceClock:
    """Records one DEVICE per step whose two events the device has reached.

    Its value is the step's number, its start the host's, its duration the device's from the event at the end of the
    step before to the one at its own end. It is told of steps by the tracker, on the training thread, which alone
    touches events: a query on another thread could fall into a capture that it cannot know of.
    """

    name = "device_clock"
    needs: tuple[str, ...] = ("torch", "torch.cuda")

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker, device: Device) -> None:
        self._record = record
        self._tracker = tracker
        self._guard = Guard("profilerkit's device clock")
        self._device = device
        self._patches: Patches | None = None
        self._is_on = False
        self._seen = False
        self._start_ns = 0
        self._under_way: deque[_Mark] = deque()
        self._before: _Mark | None = None  # the newest mark that was reached
        self._free: list[DeviceEvent] = []  # to be used again on the device where they were first recorded …
        self._free_on = -1  # … which is this one

    def hang(self, patches: Patches) -> None:
        """Have the tracker tell of steps, if the device is in use."""
        self._patches = patches
        if not self._is_on and self._device.in_use():
            self._is_on = True
            patches.later(self._tracker.observe(self))

    def beat(self) -> None:
        """Start once the device is in use."""
        if self._patches is not None and not self._is_on and self._device.in_use():
            self._patches.hang(self.hang)

    def close(self) -> None:
        """Read what is ready by now, without waiting."""
        if self._is_on and self._guard.failure is None and not self._device.is_capturing():
            self._read()

    def reason(self) -> str:
        """Why there is no device time."""
        if self._guard.failure is not None:
            return self._guard.failure
        if not self._is_on:
            return "CUDA is not in use"
        return "" if self._seen else "no event of a step was reached in time"

    def step_started(self, _number: int) -> None:
        """A step starts on the host."""
        self._start_ns = perf_counter_ns()

    def step_ended(self, number: int, _dur_ns: int) -> None:
        """A step ended on the host: mark the device's queue, and read what has become ready of the marks before."""
        if self._guard.failure is None:
            self._guard.call(self._mark, number)

    def step_cut(self) -> None:
        """A step that does not count: what the device does of it goes to the next one."""

    def rest(self) -> None:
        """The end of every step is marked on the device."""

    def _mark(self, number: int) -> None:
        device = self._device
        if device.is_capturing():
            return
        self._read()
        if len(self._under_way) >= _MOST_EVENTS - 1:  # one more is kept of the step before
            return
        here = device.current()
        if here != self._free_on:
            self._free.clear()
            self._free_on = here
        event = self._free.pop() if self._free else device.event()
        event.record()
        flags = 0 if self._under_way else _CAUGHT_UP
        self._under_way.append(_Mark(event, here, number, self._start_ns, flags))

    def _read(self) -> None:
        """Record the steps that the device has come to the end of."""
        while self._under_way and self._under_way[0].event.query():
            mark, before = self._under_way.popleft(), self._before
            self._before = mark
            if before is None or before.device != mark.device:
                continue
            if mark.number == before.number + 1:
                duration_ns = round(before.event.elapsed_time(mark.event) * _NS_PER_MS)
                self._record((_DEVICE, mark.flags, 0, mark.start_ns, duration_ns, mark.number))
                self._seen = True
            if mark.device == self._free_on:
                self._free.append(before.event)
