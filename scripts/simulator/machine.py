"""Ranks of a training job: a host that takes turns on two threads, device streams in order, collectives that wait.

Everything is exact: int ns on one clock for all ranks. A rank's program is a generator that spends host time, issues
device work and yields what it waits for; ``run`` lets the ranks go on as far as the others allow.
"""

from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAIN, BACKWARD = "main", "backward"
#: Normal deviates drawn per rank and step. A step uses the same ones whatever happened in the steps before.
_DEVIATES = 4096
_AT_ONCE = 128
#: Pause between two kernels of one stream, and after an event of another stream, ns: about what GPUs show.
_BETWEEN_KERNELS_NS = 900
_AFTER_EVENT_NS = 1_500


@dataclass(slots=True)
class Event:
    """What a profiler records on a host thread; ``end`` is set when it closes."""

    name: str
    category: str
    thread: str
    start: int
    args: dict[str, Any]
    end: int = -1


@dataclass(slots=True)
class Meeting:
    """One collective: it transfers once every member has arrived, and all leave together."""

    size: int
    latency_ns: int
    transfer_ns: int
    arrivals: list[int] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether everybody is there."""
        return len(self.arrivals) == self.size

    @property
    def last_ns(self) -> int:
        """When the last member arrived."""
        return max(self.arrivals)


@dataclass(slots=True, eq=False)
class Work:
    """Device work: a kernel, a copy, a memset or one rank's side of a collective.

    Attributes:
        leaf: what its time counts as where nothing else owns it; ``comm`` for collectives.
        ns: its length; of a collective the meeting decides.
        after: work of other streams that must end first.
        slow_ratio: how much slower it runs beside a collective of its device.
        thread: the host thread that issued it; ``called`` and ``returned`` are the edges of the issuing call.
        ready: earliest start, as far as the host is concerned.
    """

    name: str
    category: str
    leaf: str
    ns: int
    stream: int
    device: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    after: tuple["Work", ...] = ()
    meeting: Meeting | None = None
    slow_ratio: float = 1.0
    thread: str = MAIN
    called: int = -1
    returned: int = -1
    ready: int = 0
    correlation: int = -1
    external: int = -1
    previous: "Work | None" = None
    beside: tuple["Work", ...] = ()
    start: int = -1
    end: int = -1

    def settle(self) -> bool:
        """Fix start and end as soon as what they depend on is known; gives whether they are."""
        if self.end >= 0:
            return True
        if self.start < 0:
            start = self.ready
            if self.previous is not None:
                if self.previous.end < 0:
                    return False
                start = max(start, self.previous.end + _BETWEEN_KERNELS_NS)
            for other in self.after:
                if other.end < 0:
                    return False
                start = max(start, other.end + _AFTER_EVENT_NS)
            self.start = start
            if self.meeting is not None:
                self.meeting.arrivals.append(self.start)
        if self.meeting is not None:
            if self.meeting.complete:
                self.end = self.meeting.last_ns + self.meeting.latency_ns + self.meeting.transfer_ns
        elif self.slow_ratio == 1.0:
            self.end = self.start + self.ns
        elif all(other.end >= 0 for other in self.beside):
            self.end = self._slowed_end()
        return self.end >= 0

    def _slowed_end(self) -> int:
        """The end when progress is slower while a collective runs."""
        at, left = float(self.start), float(self.ns)
        for other in sorted(self.beside, key=lambda work: work.start):
            alone = max(other.start - at, 0.0)
            if other.end <= at or alone >= left:
                continue
            at, left = at + alone, left - alone
            shared = min(left * self.slow_ratio, other.end - at)
            at, left = at + shared, left - shared / self.slow_ratio
        return round(at + left)


@dataclass(frozen=True, slots=True)
class Sync:
    """A call in which a host thread waited for the device."""

    thread: str
    called: int
    returned: int


class Rank:
    """One process: its host clock, what its threads did, what it gave to its devices.

    Attributes:
        now: host time, ns.
        thread: the thread whose turn it is; forward and backward threads never run at the same time.
        did: (start, end, cause) of all host time, without holes; a cause is a leaf, ``sync`` or ``launch``.
        marks: (step, start, end) on the main thread.
    """

    def __init__(self, index: int, *, seed: int, jitter_ratio: float, queue: int) -> None:
        self.index = index
        self.now = 0
        self.thread = MAIN
        self.did: list[tuple[int, int, str]] = []
        self.events: list[Event] = []
        self.instants: list[tuple[int, dict[str, Any]]] = []
        self.works: list[Work] = []
        self.syncs: list[Sync] = []
        self.marks: list[tuple[int, int, int]] = []
        self._seed, self._jitter, self._queue = seed, jitter_ratio, queue
        self._last: dict[tuple[int, int], Work] = {}
        self._pending: defaultdict[tuple[int, int], deque[Work]] = defaultdict(deque)
        self._collectives: list[Work] = []
        self._meetings = 0
        self._numbers = {"correlation": 1000 + 17 * index, "external": 0}
        self._open: list[int] = []
        self.begin(0)

    def begin(self, step: int) -> None:
        """Take the random numbers of a step."""
        source = np.random.Generator(np.random.PCG64([self._seed, self.index, step]))
        self._drawn = source.standard_normal(_DEVIATES).clip(-3.0, 3.0)
        self._deviates = []

    def vary(self, ns: float, ratio: float | None = None) -> int:
        """A length with its jitter, at least 1 ns."""
        if not self._deviates:  # few steps need more than some of them
            self._deviates, self._drawn = self._drawn[-_AT_ONCE:].tolist() or [0.0], self._drawn[:-_AT_ONCE]
        return max(round(ns * (1.0 + (self._jitter if ratio is None else ratio) * self._deviates.pop())), 1)

    def spend(self, ns: float, cause: str) -> None:
        """Host time with a cause, without jitter of its own."""
        end = self.now + round(ns)
        if end > self.now:
            self.did.append((self.now, end, cause))
            self.now = end

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Nothing that happens inside leaves a trace or takes time."""
        now, did, events = self.now, len(self.did), len(self.events)
        yield
        self.now = now
        del self.did[did:], self.events[events:]

    @contextmanager
    def event(self, name: str, category: str = "cpu_op", **args: Any) -> Iterator[Event]:
        """An event around what happens inside; runtime calls in an operator carry its external id."""
        is_operator = category == "cpu_op"
        if is_operator or category == "user_annotation":
            self._numbers["external"] += 1
            args["External id"] = self._numbers["external"]
        if is_operator:
            self._open.append(self._numbers["external"])
        event = Event(name, category, self.thread, self.now, args)
        self.events.append(event)
        yield event
        event.end = self.now
        if is_operator:
            self._open.pop()

    def call(self, name: str, ns: float, cause: str = "over.dispatch") -> None:
        """A runtime call without device work of its own."""
        event = self._called(name)
        self.spend(ns, cause)
        event.end = self.now

    def wait_on_device(self, waiting: int, awaited: int) -> None:
        """Tell a stream to wait for what another one has been given so far."""
        event = self._called("cudaStreamWaitEvent")
        event.args["streams"] = waiting, awaited
        self.spend(900, "over.dispatch")
        event.end = self.now

    def _called(self, name: str) -> Event:
        self._numbers["correlation"] += 1
        args: dict[str, Any] = {"correlation": self._numbers["correlation"]}
        if self._open:
            args["External id"] = self._open[-1]
        event = Event(name, "cuda_runtime", self.thread, self.now, args)
        self.events.append(event)
        return event

    def launch(self, works: Sequence[Work], call: str, call_ns: float, latency_ns: float) -> Generator[Any, None, None]:
        """Issue work with one runtime call (a graph issues much); waits while the launch queue is full."""
        event = self._called(call)
        if len(self.works) >= self._queue:
            oldest = self.works[-self._queue]
            yield from self.until((oldest,))
            self.spend(oldest.start - self.now, "over.dispatch")
        self.spend(call_ns, "over.dispatch")
        event.end = self.now
        for work in works:
            key = (work.device, work.stream)
            work.thread, work.called, work.returned = self.thread, event.start, self.now
            work.ready = self.now + round(latency_ns)
            work.correlation, work.external = event.args["correlation"], event.args.get("External id", -1)
            work.previous, self._last[key] = self._last.get(key), work
            if work.meeting is not None:
                self._collectives.append(work)
            elif work.slow_ratio != 1.0:
                work.beside = tuple(self._collectives[-_MANY:])
            self.works.append(work)
            self._pending[key].append(work)
        self.settle()

    def sync(self, works: Sequence[Work], call: str, wake_ns: float) -> Generator[Any, None, None]:
        """Wait in a runtime call until the work has ended."""
        event = self._called(call)
        yield from self.until(works)
        end = max([self.now, *(work.end for work in works)]) + round(wake_ns)
        self.syncs.append(Sync(self.thread, self.now, end))
        self.spend(end - self.now, "sync")
        event.end = self.now

    def free(self, ns: float, call: str) -> Generator[Any, None, None]:
        """Give memory back to the driver, which waits for the device first."""
        event = self._called(call)
        works = self.last_work()
        yield from self.until(works)
        self.spend(max([self.now, *(work.end for work in works)]) - self.now + ns, "mem.alloc")
        event.end = self.now

    def until(self, works: Sequence[Work]) -> Generator[Any, None, None]:
        """Go on once the ends of the work are known; takes no time of its own."""
        for work in works:
            while work.end < 0:
                yield works

    def last_work(self, device: int = 0) -> list[Work]:
        """The newest work of every stream of a device."""
        return [work for (where, _), work in self._last.items() if where == device]

    def settle(self) -> bool:
        """Fix the times of what was issued, as far as they follow; gives whether any did."""
        any_settled, moved = False, True
        while moved:
            moved = False
            for queue in self._pending.values():
                while queue and queue[0].settle():
                    queue.popleft()
                    moved = any_settled = True
            moved = moved and len(self._pending) > 1
        return any_settled


#: Collectives that can still run when a kernel is issued.
_MANY = 16


def run(programs: Mapping[Rank, Generator[Any, None, None]]) -> None:
    """Run every rank's program to its end.

    Raises:
        RuntimeError: the ranks wait for each other.
    """
    left = dict(programs)
    wanted: dict[Rank, Sequence[Work]] = dict.fromkeys(left, ())
    while left:
        moved = False
        for rank, program in list(left.items()):
            if any(work.end < 0 for work in wanted[rank]):
                continue
            moved = True
            try:
                wanted[rank] = next(program)
            except StopIteration:
                del left[rank]
            while any(other.settle() for other in programs):
                pass
        if not moved:
            raise RuntimeError("the ranks of the job wait for each other")
    if any(work.end < 0 for rank in programs for work in rank.works):
        raise RuntimeError("a collective was not joined by every rank")
