"""Runs a loop on the simulator's ranks, and notes what the light tier would record of it."""

import zlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from simulator.kernels import H100, Kernel, Maker
from simulator.loop import COMPUTE_STREAM, COPY_STREAM
from simulator.machine import BACKWARD, MAIN, Meeting, Rank, Work, run
from simulator.parallel import COMM_STREAM, KERNELS, OPERATORS

from device_loops import loop as actions
from device_loops.loop import Action, Chip, Loop
from profilerkit.capture.loader import LONG_WAIT_NS
from profilerkit.rundir.layout import INPUT_SPAN, PHASE_SPAN_PREFIX, EventKind, queue_value
from profilerkit.rundir.writer import Record

US, MS = 1_000, 1_000_000
Program = Generator[Any, None, None]

#: Launches that CUDA queues before a launch call blocks.
QUEUE = 1_024
_HOST_JITTER = 0.01
#: Steps of a window, and the step it begins with.
WINDOW_STEPS, WINDOW_FIRST = 10, 67
#: What opening, and exporting a window takes of the host, ns.
_OPENING_NS, _EXPORT_NS = 30 * MS, 250 * MS
_MAKER = Maker(H100)


@dataclass(frozen=True)
class Mark:
    """A place in the compute stream: at the end of a step on the host, or behind a long wait for a batch.

    Attributes:
        number: of the step that ended last.
        start_ns: when that step began on the host.
        now_ns: when the host is at the place.
        last: what the stream had been given by then.
        is_fed: it is behind a wait.
    """

    number: int
    start_ns: int
    now_ns: int
    last: Work | None
    is_fed: bool = False

    @property
    def reached_ns(self) -> int:
        """When the device reaches an event put there."""
        return max(self.now_ns, self.last.end if self.last is not None else 0)


@lru_cache
def kernel_of(kind: str, device_ns: float) -> tuple[Kernel, dict[str, Any]]:
    """A kernel of a pass near its roof, whose size follows from its length; and what a trace says of its grid."""
    kernel = _kernel(kind, device_ns)
    blocks = kernel.blocks / H100.sms
    return kernel, {
        "registers per thread": 64, "shared memory": 0, "blocks per SM": round(blocks, 6),
        "warps per SM": round(blocks * kernel.threads / 32, 6), "grid": [kernel.blocks, 1, 1],
        "block": [kernel.threads, 1, 1], "est. achieved occupancy %": 50,
    }  # fmt: skip


def _kernel(kind: str, device_ns: float) -> Kernel:
    if device_ns < 12 * US:
        return _MAKER.tiny(device_ns)
    if kind == "optimizer":
        one = _MAKER.optimizer(1 << 24)
        return replace(_MAKER.optimizer(max(round((1 << 24) * device_ns / one.ns), 1024)), ns=device_ns)
    one = _MAKER.gemm(128, 4096, 4096)
    rows = max(round(device_ns / one.ns), 1) * 128
    return replace(_MAKER.gemm(rows, 4096, 4096, backward=kind == "backward"), ns=device_ns)


class World:
    """The collectives of a run: the first rank to come makes one, the others join it."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._meetings: dict[int, Meeting] = {}

    def join(self, number: int, ms: float) -> Meeting:
        """The meeting of one collective that takes ``ms`` once all are there."""
        if number not in self._meetings:
            self._meetings[number] = Meeting(self._ranks, 20 * US, round(ms * MS))
        return self._meetings[number]


class Recorded:
    """One rank that runs a loop.

    Attributes:
        records: of the light tier, but for those of the device's clock.
        names: of phases and functions, by number.
        marks: in the compute stream, where capture's clock may put its own.
        batches: per worker, (start, length, number) of what it made.
        window_ns: from when to when the profiler recorded; ``None`` without a window.
        stopped_ns: when the last step of the window was over.
        retries: moments at which the allocator gave its cache back.
    """

    def __init__(self, loop: Loop, rank: Rank, world: World, window: str | None) -> None:
        """``window`` is ``drained`` or ``queued``: whether opening it waits for the device; ``None`` for no window."""
        self.loop, self.rank, self._world = loop, rank, world
        self._window = window
        self.records: list[Record] = []
        self.names: dict[int, str] = {}
        self.marks: list[Mark] = []
        self.batches: dict[int, list[tuple[int, int, int]]] = {}
        self.window_ns: tuple[int, int] | None = None
        self.retries: list[int] = []
        self._opened_ns = self._traced_ns = self.stopped_ns = self._kept = 0
        self._taken: list[int] = []
        self._number = self._collectives = self._sequence = 0
        self._is_traced, self._slow_ratio = False, 1.0
        self._open: list[Work] = []
        self._waited: tuple[Work, ...] = ()
        self._does: dict[type, Callable[[Any], Program]] = {
            actions.Fetch: self._fetch, actions.Python: self._python, actions.Pass: self._pass,
            actions.Replay: self._replay, actions.Item: self._item, actions.Synchronize: self._synchronize,
            actions.Copy: self._copy, actions.Collective: self._collective, actions.Join: self._join,
            actions.Phase: self._phase, actions.Save: self._save, actions.Collect: self._collect,
            actions.Retry: self._retry, actions.Compile: self._compile, actions.Every: self._every,
            actions.Before: self._before, actions.OnRank: self._on_rank,
        }  # fmt: skip

    def program(self) -> Program:
        """All steps."""
        rank = self.rank
        for number in range(self.loop.steps):
            rank.begin(number)
            self._number, start = number, rank.now
            self._is_traced = self._window is not None and 0 <= number - WINDOW_FIRST < WINDOW_STEPS
            self._slow_ratio = chip_at(self.loop, rank.index, number).slow_ratio
            yield from self._turn_window(number)
            with self._event(f"ProfilerStep#{number}", "user_annotation"):
                yield from self._run(self.loop.step)
            rank.marks.append((number, start, rank.now))
            rank.spend(2 * US, "over.python")
            self.record(EventKind.STEP, start, number)
            self._mark(start)
            if not self._is_traced:
                del rank.events[self._kept :], rank.did[:]
        yield from rank.sync(rank.last_work(), "cudaDeviceSynchronize", 10 * US)

    def _turn_window(self, number: int) -> Program:
        """What opening and closing a window does at the start of a step.

        Stopping waits for the device, as torch's profiler does; then the trace is written.
        """
        rank = self.rank
        if self._window is None:
            return
        if number == WINDOW_FIRST - 1:
            self._opened_ns = rank.now
            rank.spend(_OPENING_NS, "other.prof")
        if number == WINDOW_FIRST:
            if self._window == "drained":
                yield from rank.sync(rank.last_work(), "cudaDeviceSynchronize", 5 * US)
            self._traced_ns = rank.now
        if number == WINDOW_FIRST + WINDOW_STEPS:
            self.stopped_ns = rank.now
            yield from rank.sync(rank.last_work(), "cudaDeviceSynchronize", 5 * US)
            self.window_ns = self._traced_ns, rank.now
            self._kept = len(rank.events)
            rank.spend(_EXPORT_NS, "other.prof")
            self.records.append((EventKind.WINDOW, 0, 0, self._opened_ns, rank.now - self._opened_ns, WINDOW_FIRST))

    def _event(self, name: str, category: str = "cpu_op", **args: Any) -> AbstractContextManager[Any]:
        """What a profiler would record, where there is one."""
        return self.rank.event(name, category, **args) if self._is_traced else nullcontext()

    def _mark(self, start_ns: int, *, is_fed: bool = False) -> None:
        last = self._last(COMPUTE_STREAM)
        self.marks.append(Mark(self._number - is_fed, start_ns, self.rank.now, last, is_fed))

    @property
    def ends(self) -> list[Mark]:
        """The ends of the steps."""
        return [mark for mark in self.marks if not mark.is_fed]

    def record(self, kind: EventKind, start: int, value: int = 0, *, name: int = 0) -> None:
        """A record of what began at ``start`` and ends now."""
        self.records.append((int(kind), 0, name, start, self.rank.now - start, value))

    def name(self, text: str) -> int:
        """The number of a name, given at its first use."""
        if text not in self.names.values():
            self.names[len(self.names) + 1] = text
        return next(number for number, known in self.names.items() if known == text)

    # The actions.

    def _run(self, step: tuple[Action, ...]) -> Program:
        for action in step:
            yield from self._does[type(action)](action)

    def _every(self, action: actions.Every) -> Program:
        if self._number % action.steps == action.steps - 1:
            yield from self._run(action.actions)

    def _before(self, action: actions.Before) -> Program:
        if self._number < action.step:
            yield from self._run(action.actions)

    def _on_rank(self, action: actions.OnRank) -> Program:
        yield from self._run(action.actions if self.rank.index == action.rank else action.others)

    def _fetch(self, action: actions.Fetch) -> Program:
        yield from ()
        rank, start, number = self.rank, self.rank.now, len(self._taken)
        slow = bool(action.slow_every) and number % action.slow_every == action.slow_every - 1
        make_ns = rank.vary((action.slow_ms if slow else action.make_ms) * MS, 0.02)
        kind = "MultiProcessing" if action.workers else "SingleProcess"
        with self._event(INPUT_SPAN, "user_annotation"), \
                self._event(f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__", "user_annotation"):  # fmt: skip
            if action.workers:
                ready = self._made(action, number, make_ns)
                rank.spend(rank.vary(60 * US), "input.wait")
                rank.spend(max(ready - rank.now, 0), "input.wait")
            else:
                rank.spend(make_ns, "input.wait")
        self._taken.append(rank.now)
        cpu_ns = 50 * US if action.workers else round(0.97 * (rank.now - start))
        self.record(EventKind.WAIT, start, cpu_ns, name=1)
        if rank.now - start >= LONG_WAIT_NS:
            self._mark(start, is_fed=True)

    def _made(self, action: actions.Fetch, number: int, make_ns: int) -> int:
        """When the worker whose turn it is has the batch; notes how many are under way and ready.

        Workers that are not ``paired`` come one after the other: the first batch of each is shorter than the rest.
        """
        worker, ahead = number % action.workers, action.workers * action.prefetch
        asked = self._taken[number - ahead] if number >= ahead else 0
        mine = self.batches.setdefault(worker, [])
        if not mine and not action.paired:
            make_ns = make_ns * (worker + 1) // action.workers
        start = max(mine[-1][0] + mine[-1][1] if mine else 0, asked)
        mine.append((start, make_ns, number))
        now = self.rank.now
        ready = sum(start + length <= now for made in self.batches.values() for start, length, of in made[-ahead:]
                    if of >= number)  # fmt: skip
        self.records.append((EventKind.QUEUE, 0, 5000 + worker, now, 0, queue_value(number, ahead, ready)))
        return start + make_ns

    def _python(self, action: actions.Python) -> Program:
        yield from ()
        self.rank.spend(self.rank.vary(action.ms * MS, 0.03), "over.python")

    def _pass(self, action: actions.Pass) -> Program:
        rank, start = self.rank, self.rank.now
        kernel = action.kind, action.device_ms * MS / action.kernels
        issue_ns = action.host_ms * MS / action.kernels
        if action.kind == "optimizer":
            with self._event(f"Optimizer.step#{action.name}.step", "user_annotation"):
                yield from self._issue(kernel, issue_ns, action.kernels)
            self.record(EventKind.OPTIMIZER, start)
        elif action.kind == "backward":
            rank.thread = BACKWARD
            for _ in range(action.kernels):
                self._sequence += 1
                args = {"Sequence number": self._sequence, "Fwd thread id": 1}
                with self._event("autograd::engine::evaluate_function: AddmmBackward0", **args), \
                        self._event("AddmmBackward0", **args):  # fmt: skip
                    yield from self._issue(kernel, issue_ns, 1)
            rank.thread = MAIN
            self.record(EventKind.BACKWARD, start)
        else:
            yield from self._issue(kernel, issue_ns, action.kernels)

    def _issue(self, which: tuple[str, float], host_ns: float, count: int) -> Program:
        rank = self.rank
        kernel, args = kernel_of(*which)
        call_ns = min(4.5 * US, 0.4 * host_ns)
        for _ in range(count):
            total = rank.vary(host_ns - call_ns, _HOST_JITTER)
            with self._operators(kernel):
                rank.spend(0.6 * total, "over.dispatch")
                yield from rank.launch([self._work(kernel, args)], "cudaLaunchKernel", call_ns, 2.5 * US)
                rank.spend(0.2 * total, "over.dispatch")
            rank.spend(0.2 * total, "over.python")

    def _operators(self, kernel: Kernel) -> AbstractContextManager[Any]:
        if not self._is_traced:
            return nullcontext()
        shapes = {"Input Dims": list(kernel.dims), "Input type": list(kernel.types)}
        with ExitStack() as stack:
            for name in kernel.operators:
                stack.enter_context(self._event(name, **shapes))
            return stack.pop_all()

    def _work(self, kernel: Kernel, args: dict[str, Any]) -> Work:
        length = self.rank.vary(kernel.ns * self._slow_ratio, self.loop.device_jitter)
        waited, self._waited = self._waited, ()
        return Work(kernel.name, "kernel", kernel.leaf, length, COMPUTE_STREAM, args=args, after=waited)

    def _last(self, stream: int) -> Work | None:
        return next((work for work in self.rank.last_work() if work.stream == stream), None)

    def _replay(self, action: actions.Replay) -> Program:
        rank = self.rank
        kernel, args = kernel_of("forward", action.device_ms * MS / action.kernels)
        nodes = range(1, action.kernels + 1)
        works = [self._work(kernel, {**args, "graph id": 1, "graph node id": node}) for node in nodes]
        yield from rank.launch(works, "cudaGraphLaunch", rank.vary(action.host_ms * MS, _HOST_JITTER), 4 * US)

    def _item(self, _action: actions.Item) -> Program:
        rank = self.rank
        copy = Work("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", "sync.d2h", rank.vary(1.4 * US), COMPUTE_STREAM)
        copy.args = {"bytes": 4, "memory bandwidth (GB/s)": 0.003}
        copy.after, self._waited = self._waited, ()
        with self._event("aten::item"), self._event("aten::_local_scalar_dense"):
            rank.spend(rank.vary(4 * US), "over.dispatch")
            yield from rank.launch([copy], "cudaMemcpyAsync", 4 * US, 2 * US)
            yield from rank.sync([copy], "cudaStreamSynchronize", rank.vary(5 * US))
            rank.spend(rank.vary(3 * US), "over.dispatch")

    def _synchronize(self, _action: actions.Synchronize) -> Program:
        start = self.rank.now
        yield from self.rank.sync(self.rank.last_work(), "cudaDeviceSynchronize", 5 * US)
        self.record(EventKind.SYNC, start, name=self.name("torch.cuda.synchronize"))

    def _copy(self, action: actions.Copy) -> Program:
        rank = self.rank
        length = rank.vary(action.device_ms * MS, 0.01)
        memory = "Pinned" if action.pinned else "Pageable"
        stream = COPY_STREAM if action.own_stream else COMPUTE_STREAM
        copy = Work(f"Memcpy HtoD ({memory} -> Device)", "gpu_memcpy", "input.h2d", length, stream)
        rate = 22.0 if action.pinned else 5.0
        copy.args = {"bytes": round(rate * length), "memory bandwidth (GB/s)": rate}
        with self._event("aten::to"), self._event("aten::_to_copy"), self._event("aten::copy_"):
            rank.spend(rank.vary(12 * US), "over.dispatch")
            called = rank.now
            yield from rank.launch([copy], "cudaMemcpyAsync", 4 * US, 2 * US)
            if not action.pinned:
                event = rank.events[-1]
                yield from rank.until([copy])
                rank.spend(copy.end - rank.now, "sync")
                event.end, copy.called, copy.returned = rank.now, called, rank.now
                yield from rank.sync([copy], "cudaStreamSynchronize", 3 * US)
        if action.own_stream:
            self._wait_for([copy])

    def _wait_for(self, works: list[Work]) -> None:
        self._waited = (*self._waited, *works)
        for stream in sorted({work.stream for work in works}):
            self.rank.wait_on_device(COMPUTE_STREAM, stream)

    def _collective(self, action: actions.Collective) -> Program:
        rank, start = self.rank, self.rank.now
        before = self._last(COMPUTE_STREAM)
        work = Work(KERNELS[action.name], "kernel", "comm", 0, COMM_STREAM, after=(before,) if before else ())
        self._collectives += 1
        work.meeting = self._world.join(self._collectives, action.ms)
        elements = round(action.ms * 45_000_000)
        args = {
            "Collective name": action.name, "In msg nelems": elements, "Out msg nelems": elements,
            "Group size": self.loop.ranks, "dtype": "Float", "In split size": "[]", "Out split size": "[]",
            "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.loop.ranks))), "Rank": rank.index, "Seq": self._collectives,
        }  # fmt: skip
        work.args = {"grid": [24, 1, 1], "block": [544, 1, 1], "est. achieved occupancy %": 0, **args}
        with self._event(OPERATORS[action.name]):
            rank.spend(rank.vary(8 * US), "over.dispatch")
            with self._event("record_param_comms", **args):
                rank.spend(rank.vary(6 * US), "over.dispatch")
                rank.wait_on_device(COMM_STREAM, COMPUTE_STREAM)
                yield from rank.launch([work], "cudaLaunchKernelExC", 5 * US, 2.5 * US)
                rank.spend(rank.vary(5 * US), "over.dispatch")
        if action.called:
            self.record(EventKind.COLLECTIVE, start, 4 * elements, name=self.name(action.called))
        if action.exposed:
            self._wait_for([work])
        else:
            self._open.append(work)

    def _join(self, _action: actions.Join) -> Program:
        yield from ()
        works, self._open = self._open, []
        self._wait_for(works)

    def _phase(self, action: actions.Phase) -> Program:
        start = self.rank.now
        with self._event(PHASE_SPAN_PREFIX + action.name, "user_annotation"):
            yield from self._run(action.actions)
        self.record(EventKind.PHASE, start, name=self.name(action.name))

    def _save(self, action: actions.Save) -> Program:
        rank, start = self.rank, self.rank.now
        yield from self._item(actions.Item())
        rank.spend(rank.vary(action.ms * MS, 0.03), "other.ckpt")
        self.record(EventKind.SAVE, start, name=self.name("torch.save"))

    def _collect(self, action: actions.Collect) -> Program:
        yield from ()
        start = self.rank.now
        self.rank.spend(self.rank.vary(action.ms * MS, 0.03), "over.gc")
        self.record(EventKind.GC, start, 2)

    def _retry(self, action: actions.Retry) -> Program:
        rank = self.rank
        rank.call("cudaMalloc", rank.vary(60 * US), "mem.alloc")
        for _ in range(2):
            yield from rank.free(rank.vary(0.25 * action.ms * MS), "cudaFree")
        rank.call("cudaMalloc", rank.vary(0.5 * action.ms * MS), "mem.alloc")
        self.retries.append(rank.now)

    def _compile(self, action: actions.Compile) -> Program:
        yield from ()
        rank, start = self.rank, self.rank.now
        with self._event("Torch-Compiled Region: 0/0"), self._event("entire_frame_compile (dynamo_timed)"):
            rank.spend(rank.vary(action.ms * MS, 0.03), "warm.compile")
        self.record(EventKind.COMPILE, start, name=0)


def chip_at(loop: Loop, rank: int, step: int) -> Chip:
    """How a rank's device is in a step."""
    chip = loop.chip
    return chip if step >= chip.from_step and chip.rank in (None, rank) else replace(Chip(), neighbours=chip.neighbours)


def simulate(loop: Loop, window: str | None = None) -> list[Recorded]:
    """Run the loop; gives one record per rank. ``window`` is ``drained``, ``queued``, or ``None`` for no window."""
    world = World(loop.ranks)
    seed = zlib.crc32(repr(loop.step).encode())
    ranks = [Rank(index, seed=seed, jitter_ratio=_HOST_JITTER, queue=QUEUE) for index in range(loop.ranks)]
    found = [Recorded(loop, rank, world, window) for rank in ranks]
    run({one.rank: one.program() for one in found})
    return found
