"""Asks CUDA when steps end on the device, and what allocators hold, without waiting for the device."""

import sys
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from time import monotonic, perf_counter_ns, sleep
from typing import Any, cast

from profilerkit.capture.clocks import Meter
from profilerkit.capture.guard import Guard, attempt
from profilerkit.capture.patches import Patches, Watch
from profilerkit.capture.steps import NEVER, StepTracker
from profilerkit.rundir.layout import SAMPLE_SECONDS, EventFlag, EventKind
from profilerkit.rundir.sampled import AllocatorSample, Sample
from profilerkit.rundir.writer import Record

_DEVICE, _CAUGHT_UP, _STARVED = int(EventKind.DEVICE), int(EventFlag.CAUGHT_UP), int(EventFlag.STARVED)
#: Marks under way at most, and how few of them halve the steps between two again (choices).
_MOST_MARKS, _FEW_MARKS = 64, 16
#: Steps from one mark to the next where marking each step costs too much (a choice): an eighth of the cost is left.
THINNED = 8
#: Steps from one look at the stream that the optimizer steps on to the next (a choice): the stream hardly ever changes.
_STREAM_EVERY = 16
_NS_PER_MS = 1e6
#: A wait that begins so soon after a mark has no work issued between them (a choice: ten launches take as long).
_AT_ONCE_NS = 100_000
#: How long the end of a recording waits for marks (a choice: half of what a launcher gives ranks when another failed).
_LAST_MARKS_NS = 500_000_000


class CudaDevice:
    """Serves the clock of this process's CUDA devices. Its calls are looked up once: a step has no time for more."""

    def in_use(self) -> bool:
        """Return whether the process uses one."""
        return cuda_in_use()

    @property
    def is_capturing(self) -> Callable[[], bool]:
        """Return the question whether the current stream captures a graph, which an event that is queried ruins."""
        return cast("Callable[[], bool]", _cuda().is_current_stream_capturing)

    @property
    def stream(self) -> Callable[[Any], Any]:
        """Return the way to a device's current stream, which has a ``device_index``; ``None`` is the current device."""
        return cast("Callable[[Any], Any]", _cuda().current_stream)

    def event(self) -> Any:
        """Make an event with timing."""
        return _cuda().Event(enable_timing=True)


#: An event at the end of a step, its device, the number of the step, its start on the host, and the record's flags.
_Mark = tuple[Any, int, int, int, int]


class DeviceClock(Watch):
    """Records one DEVICE from each mark in the device's queue to the next, once the device has reached both.

    Marks are made at the ends of steps, after what lies between two steps, and after long waits for a batch. Where the
    host is so far ahead that marks run out, every second one is given up: records span more steps, and no step is
    lost. Events of two devices have no time between them. The tracker calls on the training thread, which alone
    touches events: a query on another thread could fall into a capture that it cannot know of.
    """

    name = "device_clock"
    needs = ("torch", "torch.cuda")
    not_ready = "CUDA is not in use"

    def __init__(
        self,
        record: Callable[[Record], None],
        tracker: StepTracker,
        device: CudaDevice,
        took: Callable[[int, int, int, int], None] = lambda _number, _steps, _dur_ns, _at: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Call ``took`` with a record's last step, its steps, what they took (ns), and the last that the host ended.

        ``lost`` is called if no more records come because the clock has failed.
        """
        self._took, self._lost = took, lost
        self.meter = Meter()  #: what a mark costs; ``marks`` is how many were made
        self.marks = 0
        self.every = 1  #: steps from one mark to the next, at least
        self._record = record
        self._tracker = tracker
        self._guard = Guard("profilerkit's device clock", self._fail)
        self._device = device
        self._is_capturing: Callable[[], bool] = bool
        self._current: Callable[[Any], Any] = lambda _device: None
        self._patches: Patches | None = None
        self._spacing = 1  # steps to the next mark
        self._stream: Any = None  # on which an optimizer last stepped
        self._since_ns = 0  # what was read since the end of a step
        self._newest = self._newest_ns = -1  # the step of the last mark that was made, and when that was
        self._under_way: deque[_Mark] = deque()
        self._before: _Mark | None = None  # the newest mark that was reached
        self._free: list[Any] = []  # to be used again on the device where they were first recorded …
        self._free_on = -1  # … which is this one

    def is_ready(self) -> bool:
        """Return whether the device is in use."""
        return self._device.in_use()

    def install(self, patches: Patches) -> None:
        """Have the tracker mark steps."""
        self._patches = patches
        self._is_capturing, self._current = self._device.is_capturing, self._device.stream
        self._tracker.mark, self._tracker.optimizer_starts = self._mark, self._trains
        self._tracker.fed_late = self._fed_late
        self._tracker.mark_at = self._tracker.optimizer_starts_at = 0  # last: now the training thread may call them
        patches.on_remove(self._end)

    def catch_up(self) -> None:
        """Read what is ready by now, without waiting."""
        if self._patches is not None and self._guard.failure is None:
            self._guard.call(self._read_now)

    def close(self) -> None:
        """Read what is ready, or becomes so within ``_LAST_MARKS_NS``: a short run may end before a step of its device.

        The training is over, and the process would wait for its device as it ends. A device that hangs is left.
        """
        until_ns = perf_counter_ns() + _LAST_MARKS_NS
        self.catch_up()
        while self._under_way and self._guard.failure is None and perf_counter_ns() < until_ns:
            sleep(0.001)
            self.catch_up()

    def reason(self) -> str:
        """Why the device is not timed. While it has reached no mark yet it is timed all the same."""
        return self._guard.failure or ""

    def _end(self) -> None:
        self._tracker.mark_at = self._tracker.optimizer_starts_at = NEVER

    def _fail(self) -> None:
        self._end()
        self._lost()

    def _trains(self, optimizer: Any) -> None:
        """Mark the stream that this optimizer steps on, of its parameters' device, unless it only captures.

        ``None`` for the optimizer, as when a graph is replayed, is the current device.
        """
        self._tracker.optimizer_starts_at = self._tracker.count + _STREAM_EVERY
        if not self._guard.call(self._is_capturing):
            self._stream = self._guard.call(self._current, attempt(_device_of, optimizer))

    def _fed_late(self, wait_ns: int) -> None:
        """Mark the end of a wait for a batch that began at a mark: in between the device was given nothing."""
        number, now_ns = self._tracker.count - 1, perf_counter_ns()
        if self._spacing == 1 and self._newest == number and now_ns - wait_ns - self._newest_ns < _AT_ONCE_NS:
            self._mark(number, now_ns, _STARVED)

    def _mark(self, number: int, start_ns: int, flags: int = 0) -> None:
        """Mark the end of step ``number``, or of what follows it, and read what is ready of the marks before."""
        began_ns = perf_counter_ns()
        self._guard.call(self._put, number, start_ns, flags)
        took_ns = perf_counter_ns() - began_ns
        self.marks += 1
        self._tracker.marking_ns += took_ns
        if self.meter.is_open:
            self.meter.add(took_ns)

    def _put(self, number: int, start_ns: int, flags: int) -> None:
        if self._patches is None or not self._patches.armed or self._is_capturing():
            return
        self._read(number)
        if self._spacing != self.every or len(self._under_way) == _MOST_MARKS:
            self._space()
        self._tracker.mark_at = number + self._spacing
        marks, stream = self._under_way, self._stream
        if len(marks) == _MOST_MARKS:
            return
        if stream is None:
            stream = self._current(None)
        here = stream.device_index
        if here != self._free_on:
            self._free.clear()
            self._free_on = here
        event = self._free.pop() if self._free else self._device.event()
        event.record(stream)
        marks.append((event, here, number, start_ns, flags if marks else flags | _CAUGHT_UP))
        self._newest, self._newest_ns = number, perf_counter_ns()

    def _read_now(self) -> None:
        if not self._is_capturing():
            self._read(self._newest)

    def _space(self) -> None:
        """Choose how many steps lie between marks. The last of several marks of one step stays."""
        spacing, count = self._spacing, len(self._under_way)
        if count == _MOST_MARKS:
            last = {mark[2]: (*mark[:4], mark[4] & ~_STARVED) for mark in self._under_way}
            self._under_way = deque(islice(last.values(), 0, None, 2))
            spacing *= 2
        elif count < _FEW_MARKS:
            spacing //= 2
        self._spacing = max(self.every, spacing)

    def _read(self, at: int) -> None:
        """Record the time between the marks that the device has reached; the host has ended step ``at``."""
        marks, before = self._under_way, self._before
        while marks and marks[0][0].query():
            mark = marks.popleft()
            event, device, number, start_ns, flags = mark
            if before is not None and before[1] == device:
                steps, took_ns = number - before[2], round(before[0].elapsed_time(event) * _NS_PER_MS)
                self._record((_DEVICE, flags, steps, start_ns, took_ns, number))
                if steps or flags & _STARVED:  # else it is the step's before
                    self._since_ns += took_ns
                if steps:
                    self._took(number, steps, self._since_ns, at)
                    self._since_ns = 0
                if device == self._free_on:
                    self._free.append(before[0])
            self._before = before = mark


def _device_of(optimizer: Any) -> Any:
    groups = () if optimizer is None else optimizer.param_groups
    device = next((parameter.device for group in groups for parameter in group["params"]), None)
    return device if device is not None and device.type == "cuda" else None


def cuda_in_use() -> bool:
    """Return whether CUDA is initialised, and memory was ever allocated on a device.

    A seed or a look at a device's properties initialises CUDA in a run that trains on the CPU. An allocator of the
    user's own, which torch cannot ask, counts as use.
    """
    return any(peak is None or peak > 0 for peak in peaks_bytes())


def peaks_bytes() -> list[int | None]:
    """Return the most memory that was allocated on each device, bytes; nothing before CUDA is initialised.

    ``None`` is a device whose allocator torch cannot ask, as with ``torch.cuda.memory.CUDAPluggableAllocator``.
    """
    if not _is_initialized():
        return []
    cuda = _cuda()
    return [attempt(cuda.max_memory_allocated, device) for device in range(cuda.device_count())]


def captures_graph() -> bool:
    """Return whether the calling thread's current stream captures a graph: a profiler that starts or ends ruins it.

    CUDA raises instead of answering once a kernel has failed an assertion. Nothing is captured then.
    """
    return _is_initialized() and bool(attempt(_cuda().is_current_stream_capturing))


def _is_initialized() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(getattr(cuda, "is_initialized", bool)())


def _cuda() -> Any:
    return sys.modules["torch.cuda"]


def activities_in_use(torch: Any) -> list[Any]:
    """Return the CPU and the devices in use: to ask whether one is available could initialise it."""
    activity = torch.profiler.ProfilerActivity
    return [activity.CPU, activity.CUDA] if cuda_in_use() else [activity.CPU]


#: Field of a sample to its place in ``torch.cuda.memory_stats_as_nested_dict``.
_FIELDS = {
    "allocated_bytes": ("allocated_bytes", "all", "current"),
    "allocated_peak_bytes": ("allocated_bytes", "all", "peak"),
    "reserved_bytes": ("reserved_bytes", "all", "current"),
    "reserved_peak_bytes": ("reserved_bytes", "all", "peak"),
    "active_bytes": ("active_bytes", "all", "current"),
    "inactive_split_bytes": ("inactive_split_bytes", "all", "current"),
    "alloc_retries": ("num_alloc_retries",),
    "ooms": ("num_ooms",),
    "requested_bytes": ("requested_bytes", "all", "current"),
}


class AllocatorWatch(Watch):
    """Writes the statistics of the device on which this process has reserved most.

    They come from the allocator's own counters: no call goes to the device. ``mem_get_info`` would be one, on a thread
    that cannot know whether a graph is being captured; the device's free memory is sampled through NVML.
    """

    name = "allocator"
    needs = ("torch", "torch.cuda")
    unseen = "CUDA's allocator is not in use"

    def __init__(
        self, write: Callable[[Sample], None], statistics: Callable[[], Mapping[str, Any]] | None = None
    ) -> None:
        """``statistics`` gives torch's nested statistics, empty while there are none."""
        self._write = write
        self._statistics = statistics or cuda_statistics
        self._due = 0.0

    def beat(self) -> None:
        """Take a sample when a second has passed."""
        now = monotonic()
        if now >= self._due:
            self._due = now + SAMPLE_SECONDS
            self._sample()

    def close(self) -> None:
        """Take the last sample."""
        self._sample()

    def _sample(self) -> None:
        statistics = self._statistics()
        if statistics:
            found = {field: _at(statistics, path) for field, path in _FIELDS.items()}
            self._write(Sample(t_ns=perf_counter_ns(), allocator=AllocatorSample(**found)))
            self.seen = True


def cuda_statistics() -> Mapping[str, Any]:
    """The statistics of the device on which this process has reserved most; empty while CUDA is not in use."""
    if not cuda_in_use():
        return {}
    cuda: Any = sys.modules["torch.cuda"]
    devices = [cuda.memory_stats_as_nested_dict(device) for device in range(cuda.device_count())]
    return max(devices, key=lambda found: _at(found, _FIELDS["reserved_bytes"]) or 0, default={})


def _at(statistics: Mapping[str, Any], path: tuple[str, ...]) -> int | None:
    found: Any = statistics
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return int(found)
