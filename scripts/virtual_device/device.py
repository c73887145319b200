"""The device itself: streams in order, a launch queue of bounded depth, events, graphs, an allocator. No torch here."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Launches that CUDA queues per context before a launch call blocks (seen on several GPUs; not documented).
QUEUE_DEPTH = 1_024
#: NVML's utilisation is over the past second.
UTILIZATION_S = 1.0
#: What a context holds once before any tensor of the program's, here of a cuBLAS workspace's size on an H100.
_WORKSPACE_BYTES = 32 << 20
_NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"


class OutOfMemoryError(RuntimeError):
    """The device's memory does not suffice; ``install`` makes torch's error of it."""


class Stream:
    """Work in order; ``free_s`` is when the device is done with what it was given so far."""

    device_index = 0

    def __init__(self, device: "Device") -> None:
        self._device = device
        self.free_s = 0.0

    def query(self) -> bool:
        """Whether all work is done."""
        self._device.refuse_in_capture()
        return self.free_s <= self._device.now()

    def synchronize(self) -> None:
        """Wait until all work is done."""
        self._device.refuse_in_capture()
        self._device.wait_until(self.free_s)

    def wait_event(self, event: "Event") -> None:
        """Begin nothing more before ``event`` is reached."""
        self.free_s = max(self.free_s, event.reached_s)

    def wait_stream(self, other: "Stream") -> None:
        """Begin nothing more before ``other`` has done what it was given so far."""
        self.free_s = max(self.free_s, other.free_s)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """An event at the end of the queue."""
        event = event or Event(self._device)
        event.record(self)
        return event


class Event:
    """A mark in a stream."""

    def __init__(self, device: "Device") -> None:
        self._device = device
        self.reached_s = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Put it at the end of a stream's queue."""
        device = self._device
        device.events_recorded += 1
        self.reached_s = max((stream or device.current).free_s, device.now())

    def query(self) -> bool:
        """Whether the device has reached it."""
        self._device.refuse_in_capture()
        return self.reached_s <= self._device.now()

    def synchronize(self) -> None:
        """Wait until the device has reached it."""
        self._device.refuse_in_capture()
        self._device.wait_until(self.reached_s)

    def wait(self, stream: Stream | None = None) -> None:
        """Have a stream wait for it."""
        (stream or self._device.current).wait_event(self)

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds of the device from this one to ``end``, both reached."""
        if max(self.reached_s, end.reached_s) > self._device.now():
            raise RuntimeError("CUDA error: device not ready")
        return (end.reached_s - self.reached_s) * 1e3


class Graph:
    """What was launched while a stream was captured: replayed by one launch."""

    def __init__(self, device: "Device") -> None:
        self._device = device
        self._seconds = 0.0

    def capture_begin(self, **_settings: object) -> None:
        """Record launches instead of running them."""
        self._device.captured_s, self._device.capture_error = 0.0, ""

    def capture_end(self) -> None:
        """The graph is complete; what was not permitted meanwhile has made it invalid."""
        device = self._device
        self._seconds, device.captured_s = device.captured_s or 0.0, None
        if device.capture_error:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def replay(self) -> None:
        """Launch all of it."""
        self._device.launch(self._seconds)


class Device:
    """One device.

    Attributes:
        current: the stream that launches go to.
        captured_s: device time of the graph that is being captured; ``None`` while none is.
        capture_error: the first call that ruined the capture; empty while none has.
        slow_ratio: how much longer every kernel takes: a lower clock, or a neighbour that takes turns.
        events_recorded: how many event marks were put into queues.
        drained: how often the host waited for the device.
        peak: most bytes allocated at once; 0 is a device that is initialised and not used.
    """

    def __init__(
        self,
        *,
        name: str = "NVIDIA H100 80GB HBM3",
        uuid: str = "aaaaaaaa-0000-0000-0000-000000000001",
        memory_bytes: int = 80 << 30,
        queue_depth: int = QUEUE_DEPTH,
        launch_s: float = 0.0,
        copy_gb_per_s: float = 20.0,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``launch_s`` is what a launch call takes of the host besides Python's own time."""
        self.name, self.uuid, self.memory_bytes = name, uuid, memory_bytes
        self.now, self._sleep = clock, sleep
        self._launch_s, self._copy_bytes_per_s = launch_s, copy_gb_per_s * 1e9
        self.default = self.current = Stream(self)
        self._queued: deque[float] = deque()
        self._depth = queue_depth
        self._busy: deque[tuple[float, float]] = deque()
        self._lock = threading.Lock()
        self.captured_s: float | None = None
        self.capture_error = ""
        self.slow_ratio = 1.0
        self.events_recorded = self.drained = 0
        self.allocated = self.reserved = self.reserved_peak = self.retries = self.ooms = 0
        self.peak = _WORKSPACE_BYTES

    def launch(self, seconds: float, stream: Stream | None = None) -> None:
        """Queue one kernel; returns at once unless ``queue_depth`` launches wait."""
        stream = stream or self.current
        if self.captured_s is not None:
            self.captured_s += seconds
            return
        if self._launch_s:
            self.wait_until(self.now() + self._launch_s, drains=False)
        while self._queued and self._queued[0] <= self.now():
            self._queued.popleft()
        if len(self._queued) >= self._depth:
            self.wait_until(self._queued.popleft(), drains=False)
        start = max(stream.free_s, self.now())
        stream.free_s = start + seconds * self.slow_ratio
        self._queued.append(stream.free_s)
        with self._lock:
            if self._busy and self._busy[-1][1] >= start:
                self._busy[-1] = self._busy[-1][0], max(stream.free_s, self._busy[-1][1])
            else:
                self._busy.append((start, stream.free_s))

    def copy(self, size_bytes: int, *, pinned: bool, stream: Stream | None = None) -> None:
        """Copy to or from the device; from pageable memory the call returns when the copy is done."""
        stream = stream or self.current
        self.launch(size_bytes / self._copy_bytes_per_s, stream)
        if not pinned:
            stream.synchronize()

    def synchronize(self) -> None:
        """Wait until every queue is empty."""
        self.refuse_in_capture()
        self.wait_until(max([self.default.free_s, self.current.free_s, *self._queued]))

    def drain(self) -> None:
        """Read a value back: wait for the current stream."""
        self.current.synchronize()

    def wait_until(self, at_s: float, *, drains: bool = True) -> None:
        """Hold the host."""
        left_s = at_s - self.now()
        if left_s > 0:
            self.drained += drains
            self._sleep(left_s)

    def refuse_in_capture(self) -> None:
        """A call that looks at or waits for the device ruins a capture, and says so.

        Raises:
            RuntimeError: a stream is being captured.
        """
        if self.captured_s is not None:
            self.capture_error = self.capture_error or _NOT_PERMITTED
            raise RuntimeError(_NOT_PERMITTED)

    @contextmanager
    def on(self, stream: Stream | None) -> Iterator[None]:
        """Launch on another stream inside the block."""
        before, self.current = self.current, stream or self.current
        try:
            yield
        finally:
            self.current = before

    def utilization_ratio(self) -> float:
        """Share of the past second in which a kernel ran, as NVML has it."""
        now = self.now()
        since = now - UTILIZATION_S
        with self._lock:
            while self._busy and self._busy[0][1] < since:
                self._busy.popleft()
            busy = sum(max(min(end, now) - max(start, since), 0.0) for start, end in self._busy)
        return min(busy / UTILIZATION_S, 1.0)

    def allocate(self, size_bytes: int) -> None:
        """Take memory. With too little free the cache is given back first, which drains the device: a retry.

        Raises:
            OutOfMemoryError: it does not suffice even so.
        """
        if self.allocated + size_bytes > self.reserved:
            if max(self.reserved, self.allocated) + size_bytes > self.memory_bytes and self.reserved > self.allocated:
                self.retry()
            if self.allocated + size_bytes > self.memory_bytes:
                self.ooms += 1
                raise OutOfMemoryError(self._refusal(size_bytes))
            self.reserved = max(self.reserved, self.allocated + size_bytes)
            self.reserved_peak = max(self.reserved_peak, self.reserved)
        self.allocated += size_bytes
        self.peak = max(self.peak, self.allocated)

    def free(self, size_bytes: int) -> None:
        """Give memory back to the cache."""
        self.allocated -= size_bytes

    def retry(self) -> None:
        """Give the cache back to the driver, which waits for the device."""
        self.retries += 1
        self.synchronize()
        self.reserved = self.allocated

    def _refusal(self, size_bytes: int) -> str:
        free, gib = self.memory_bytes - self.reserved, 1 << 30
        return (
            f"CUDA out of memory. Tried to allocate {size_bytes / gib:.2f} GiB. GPU 0 has a total capacity of "
            f"{self.memory_bytes / gib:.2f} GiB of which {free / gib:.2f} GiB is free."
        )
