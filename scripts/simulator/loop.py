"""The training loop as a program of one rank: what the host does and issues in a step, in order."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from simulator.job import US, Data, Job
from simulator.kernels import Kernel
from simulator.machine import BACKWARD, MAIN, Rank, Work
from simulator.model import device_ns, layers_of, maker_of, optimizer_of

Program = Generator[Any, None, None]

COMPUTE_STREAM, SIDE_STREAM, COPY_STREAM = 7, 13, 17
_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_ALONE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
#: How much longer a cold step is, in lengths of what its kernels take.
_COLD_RATIO = 4.0
_COMPILE_EVENTS = (
    "Torch-Compiled Region: 0/1",
    "entire_frame_compile (dynamo_timed)",
    "_compile.compile_inner (dynamo_timed)",
    "backend_compile (dynamo_timed)",
)


class Loader:
    """Worker processes that make batches in turn, some ahead of the loop, as torch's ``DataLoader`` has it."""

    def __init__(self, data: Data, produce_us: float) -> None:
        self.taken: list[int] = []
        self._free = [0] * data.workers
        self._ahead = data.workers * data.prefetch
        self._produce_us = produce_us

    def ready(self, rank: Rank) -> int:
        """When the next batch is there."""
        number = len(self.taken)
        worker = number % len(self._free)
        asked = self.taken[number - self._ahead] if number >= self._ahead else 0
        self._free[worker] = max(self._free[worker], asked) + rank.vary(self._produce_us * US, 0.05)
        return self._free[worker]


class Loop:
    """One rank that trains; parallel training derives from it and adds what happens between the layers.

    Attributes:
        wrapper: what the class that makes the training parallel calls its forward pass; empty without one.
        passes: how often the layers run in a step.
    """

    wrapper = ""
    passes = 1

    def __init__(self, job: Job, rank: Rank) -> None:
        self.job, self.rank = job, rank
        self.make = maker_of(job)
        self.layers = layers_of(job)
        self.step_number = 0
        self._sequence = 0
        self._allocated = job.memory.allocated_bytes
        self._reserved = job.memory.reserved_bytes
        self._graph: list[Work] | None = None
        self._waited: tuple[Work, ...] = ()
        late = job.late.rank == rank.index
        self._slow = job.late.slow_ratio if late else 1.0
        self._loader = Loader(job.data, job.late.produce_us if late else job.data.produce_us)

    def program(self) -> Program:
        """All steps, and the wait for the device with which a recording ends."""
        rank, job = self.rank, self.job
        for number in range(-job.before, job.steps):
            rank.begin(number + job.before)
            self.step_number = number
            start = rank.now
            with rank.event(f"ProfilerStep#{number + job.before}", "user_annotation"):
                if 0 <= number < job.warmup:
                    rank.spend(rank.vary(_COLD_RATIO * self.passes * device_ns(job)), "over.python")
                yield from self.step()
            rank.marks.append((number, start, rank.now))
            self._spend_python(8.0)
        yield from rank.sync(rank.last_work(), "cudaDeviceSynchronize", 10 * US)

    def step(self) -> Program:
        """One iteration of the loop."""
        rank = self.rank
        self._fetch()
        if self.job.odd.overhead_us:
            self._profiler_overhead()
        yield from self._copy_batch()
        if self.job.host.python_us:
            self._spend_python(self.job.host.python_us)
        if self.step_number in self.job.odd.compile_steps:
            self._compile()
        if not self.job.odd.captured:
            yield from self._tiny_operators()
        if self.job.odd.graph:
            yield from self._replay()
        else:
            with rank.event(self.wrapper, "user_annotation") if self.wrapper else nullcontext():
                yield from self.forward()
            yield from self.backward()
            yield from self.optimize()
        if self.job.host.readback:
            yield from self._read()
        self._checkpoint()

    # What happens between the layers.

    def before_layer(self, layer: int, *, backward: bool) -> Program:
        """Hook of parallel training."""
        yield from ()

    def after_layer(self, layer: int, *, backward: bool) -> Program:
        """Hook of parallel training."""
        yield from ()

    def after_node(self, layer: int, node: int) -> Program:
        """Hook of parallel training, in backward."""
        yield from ()

    def after_backward(self) -> Program:
        """Hook of parallel training."""
        yield from ()

    def gate(self) -> tuple[Work, ...]:
        """What the next kernel of the compute stream must wait for beside its own stream."""
        waited, self._waited = self._waited, ()
        return waited

    def wait_for(self, works: Sequence[Work]) -> None:
        """Make the compute stream wait for work of other streams."""
        self._waited = (*self._waited, *works)
        for stream in sorted({work.stream for work in works}):
            self.rank.wait_on_device(COMPUTE_STREAM, stream)

    def newest(self, stream: int) -> list[Work]:
        """The newest work of one stream."""
        return [work for work in self.rank.last_work() if work.stream == stream]

    # The passes.

    def forward(self) -> Program:
        """All layers, with what the job injects among them."""
        reads = self._every(self.job.reads.count, len(self.layers) * len(self.layers[0]))
        retries = self._every(self.job.memory.retries, len(self.layers) * len(self.layers[0]), offset=1)
        at = 0
        for number, layer in enumerate(self.layers):
            yield from self.before_layer(number, backward=False)
            for node in layer:
                for kernel in node.forward:
                    yield from self.issue(kernel, retry=at in retries)
                self._instant(+1)
                if at in reads:
                    yield from self._read(self.job.reads.after_us, kept=self.job.reads.kept)
                at += 1
            yield from self.after_layer(number, backward=False)
        yield from self._extra_kernels()

    def backward(self) -> Program:
        """The layers in reverse, on the backward thread; what was not kept of them is computed again first."""
        rank, job = self.rank, self.job
        self._spend_python(20.0)
        rank.thread = BACKWARD
        for number in reversed(range(len(self.layers))):
            yield from self.before_layer(number, backward=True)
            if job.memory.recomputed and job.memory.reentrant:
                name = "CheckpointFunctionBackward"
                with rank.event(f"autograd::engine::evaluate_function: {name}"), rank.event(name):
                    yield from self._forward_again(number)
                    yield from self._layer_backward(number, recompute=False)
            else:
                yield from self._layer_backward(number, recompute=bool(job.memory.recomputed))
            yield from self.after_layer(number, backward=True)
        yield from self.after_backward()
        rank.spend(rank.vary(12 * US), "over.python")
        rank.thread = MAIN

    def _layer_backward(self, number: int, *, recompute: bool) -> Program:
        rank = self.rank
        for at, node in enumerate(reversed(self.layers[number])):
            self._sequence += 1
            args = {"Sequence number": self._sequence, "Fwd thread id": 1}
            with rank.event(f"autograd::engine::evaluate_function: {node.name}", **args), rank.event(node.name, **args):
                rank.spend(rank.vary(2 * US), "over.dispatch")
                if recompute and at == 0:
                    yield from self._forward_again(number)
                for kernel in node.backward:
                    yield from self.issue(kernel)
            rank.spend(rank.vary(1.5 * US), "over.python")
            self._instant(-1)
            yield from self.after_node(number, at)

    def _forward_again(self, number: int) -> Program:
        for at in self.job.memory.recomputed:
            for kernel in self.layers[number][at].forward:
                yield from self.issue(kernel, leaf="mem.recompute")

    def optimize(self) -> Program:
        """The optimizer on the main thread."""
        if self.job.extra.side:
            self.wait_for(self.newest(SIDE_STREAM))
        with self.rank.event("Optimizer.step#AdamW.step", "user_annotation"):
            self.rank.spend(self.rank.vary(25 * US), "over.python")
            for kernel in optimizer_of(self.job):
                yield from self.issue(kernel)
        with self.rank.event("Optimizer.zero_grad#AdamW.zero_grad", "user_annotation"):
            self.rank.spend(self.rank.vary(8 * US), "over.python")

    # Single operations.

    def work(self, kernel: Kernel, *, leaf: str | None = None, stream: int = COMPUTE_STREAM, device: int = 0) -> Work:
        """Device work of a kernel, with the arguments a trace gives it."""
        blocks = kernel.blocks / self.job.chip.sms
        args = {
            "registers per thread": 64, "shared memory": 0, "blocks per SM": round(blocks, 6),
            "warps per SM": round(blocks * kernel.threads / 32, 6), "grid": [kernel.blocks, 1, 1],
            "block": [kernel.threads, 1, 1], "est. achieved occupancy %": 50,
        }  # fmt: skip
        return Work(
            kernel.name, "kernel", leaf or kernel.leaf,
            self.rank.vary(self._slow * kernel.ns / self.job.faster), stream, device, args,
            after=self._must_end_before(stream, device),
            slow_ratio=self.job.comm.slow_ratio,
        )  # fmt: skip

    def _must_end_before(self, stream: int, device: int) -> tuple[Work, ...]:
        if device:
            return ()
        if stream == SIDE_STREAM:
            return tuple(self.newest(COMPUTE_STREAM))
        return self.gate() if stream == COMPUTE_STREAM else ()

    def issue(self, kernel: Kernel, *, leaf: str | None = None, stream: int = COMPUTE_STREAM,
              retry: bool = False, copies: int = 1) -> Program:  # fmt: skip
        """Run the operators around a kernel and launch it, ``copies`` times in a row."""
        rank, host = self.rank, self.job.host
        if self._graph is not None:
            self._graph.append(self.work(kernel, leaf=leaf, stream=stream))
            return
        total = rank.vary(host.operator_us * US, 10 * host.jitter_ratio)
        shapes = {"Input Dims": list(kernel.dims), "Input type": list(kernel.types)}
        with ExitStack() as stack:
            for name in kernel.operators:
                stack.enter_context(rank.event(name, **(shapes if self.job.recording.shapes else {})))
                rank.spend(0.7 * total / len(kernel.operators), "over.dispatch")
            if retry:
                yield from self._retry()
            for _ in range(copies):
                yield from self.launch([self.work(kernel, leaf=leaf, stream=stream)])
            if self.job.extra.second_device_ratio:
                slower = kernel.slower(self.job.extra.second_device_ratio)
                yield from self.launch([self.work(slower, leaf=leaf, device=1)])
            rank.spend(0.3 * total, "over.dispatch")
        rank.spend(rank.vary(host.between_us * US, 10 * host.jitter_ratio), "over.python")

    def launch(self, works: Sequence[Work], call: str = "cudaLaunchKernel") -> Program:
        """One launch call."""
        rank, host = self.rank, self.job.host
        yield from rank.launch(works, call, rank.vary(host.launch_us * US), rank.vary(host.latency_us * US))

    def _replay(self) -> Program:
        """The whole step as one graph: many kernels, one launch, no operators."""
        self._graph = []
        with self.rank.aside() if self.job.odd.captured else nullcontext():
            if self.job.odd.captured:
                yield from self._tiny_operators()
            yield from self.forward()
            yield from self.backward()
            yield from self.optimize()
        works, self._graph = self._graph, None
        for number, work in enumerate(works):
            work.args |= {"graph id": 1, "graph node id": number + 1}
        yield from self.launch(works, "cudaGraphLaunch")

    def _fetch(self) -> None:
        rank = self.rank
        data = self.job.data
        with rank.event(_LOADER if data.workers else _ALONE, "user_annotation"):
            rank.spend(rank.vary(data.fetch_us * US, 0.1), "input.wait")
            if data.workers:
                rank.spend(self._loader.ready(rank) - rank.now, "input.wait")
                self._loader.taken.append(rank.now)
            else:
                rank.spend(rank.vary(data.produce_us * US, 0.05), "input.wait")

    def _copy_batch(self) -> Program:
        rank, data = self.rank, self.job.data
        source = "Pinned" if data.pinned else "Pageable"
        stream = COPY_STREAM if data.own_stream else COMPUTE_STREAM
        length = rank.vary(data.bytes / data.gb_per_s)
        copy = Work(f"Memcpy HtoD ({source} -> Device)", "gpu_memcpy", "input.h2d", length, stream)
        copy.args = {"bytes": data.bytes, "memory bandwidth (GB/s)": data.bytes / length}
        with rank.event("aten::to"), rank.event("aten::_to_copy"), rank.event("aten::copy_"):
            rank.spend(rank.vary(12 * US), "over.dispatch")
            if data.pinned:
                yield from self.launch([copy], "cudaMemcpyAsync")
            else:
                yield from self._staged(copy)
        self._spend_python(6.0)

    def _staged(self, copy: Work) -> Program:
        """A copy from pageable memory: the call stages the first piece, and returns when the last one is on its way."""
        rank = self.rank
        called = rank.now
        first = rank.vary((40 + copy.args["bytes"] / 120_000) * US)
        rank.spend(first, "input.h2d")
        yield from rank.launch([copy], "cudaMemcpyAsync", 1 * US, 500)
        event = rank.events[-1]
        yield from rank.until([copy])
        rank.spend(copy.end - rank.now, "sync")
        event.start, event.end = called, rank.now
        copy.called, copy.returned = called, rank.now
        yield from rank.sync([copy], "cudaStreamSynchronize", 3 * US)

    def _tiny_operators(self) -> Program:
        tiny, host = self.job.tiny, self.job.host
        if not tiny.count:
            return
        reads = self._every(tiny.reads, tiny.count)
        kernel = self.make.tiny(tiny.kernel_us * US)
        for number in range(tiny.count):
            extra_us = tiny.operator_us - host.operator_us
            with self.rank.event("aten::index_put_" if number % 3 == 2 else "aten::where"):
                self.rank.spend(self.rank.vary(extra_us * US, 0.1), "over.dispatch")
                yield from self.issue(kernel)
            self._spend_python(host.between_us)
            if number in reads:
                yield from self._read()

    def _extra_kernels(self) -> Program:
        extra = self.job.extra
        if extra.chain:
            kernel = self._pointwise(extra.chain_us)
            for _ in range(extra.chain):
                yield from self.issue(kernel)
        if extra.side:
            kernel = self._pointwise(extra.side_us)
            self.rank.wait_on_device(SIDE_STREAM, COMPUTE_STREAM)
            for _ in range(extra.side):
                yield from self.issue(kernel, stream=SIDE_STREAM)
        for first in range(0, extra.small, 8):
            kernel = self.make.tiny(extra.small_us * US, "aten::sort")
            yield from self.issue(kernel, copies=min(8, extra.small - first))

    def _pointwise(self, length_us: float) -> Kernel:
        """A pointwise kernel of a given length: the rows follow from it."""
        width = 1024
        one = self.make.pointwise(1 << 16, width, "aten::mul")
        rows = max(round((1 << 16) * length_us * US / one.ns), 1)
        return self.make.pointwise(rows, width, "aten::mul")

    def _read(self, after_us: float = 0.0, *, kept: bool = False) -> Program:
        """``.item()``: a small copy to the host and the wait for it; then the host works on with the value."""
        rank = self.rank
        if not kept:
            yield from self._item()
        until = rank.now + round(after_us * US)
        while rank.now < until:
            rank.spend(min(rank.vary(80 * US, 0.3), until - rank.now), "over.python")
            with rank.event("aten::add"):
                rank.spend(min(rank.vary(25 * US, 0.3), max(until - rank.now, 0)), "over.dispatch")

    def _item(self) -> Program:
        rank = self.rank
        copy = Work("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", "sync.d2h", rank.vary(1.4 * US), COMPUTE_STREAM)
        copy.args, copy.after = {"bytes": 4, "memory bandwidth (GB/s)": 0.003}, self.gate()
        with rank.event("aten::item"), rank.event("aten::_local_scalar_dense"):
            rank.spend(rank.vary(4 * US), "over.dispatch")
            yield from self.launch([copy], "cudaMemcpyAsync")
            yield from rank.sync([copy], "cudaStreamSynchronize", rank.vary(self.job.host.wake_us * US))
            rank.spend(rank.vary(3 * US), "over.dispatch")

    def _retry(self) -> Program:
        """The allocator is out of cached memory: a call fails, cached blocks are freed, the call is made again."""
        rank, memory = self.rank, self.job.memory
        rank.call("cudaMalloc", rank.vary(60 * US), "mem.alloc")
        for _ in range(2):
            yield from rank.free(rank.vary(memory.free_us * US / 2, 0.05), "cudaFree")
            self._reserved -= 512 << 20
            self._instant(0)
        rank.call("cudaMalloc", rank.vary(memory.malloc_us * US, 0.05), "mem.alloc")
        self._reserved += 1024 << 20
        self._instant(0)

    def _compile(self) -> None:
        rank = self.rank
        with ExitStack() as stack:
            for name in _COMPILE_EVENTS:
                stack.enter_context(rank.event(name))
                rank.spend(20 * US, "warm.compile")
            rank.spend(rank.vary(self.job.odd.compile_us * US, 0.05), "warm.compile")

    def _checkpoint(self) -> None:
        rank, odd = self.rank, self.job.odd
        if odd.checkpoint_every and (self.step_number + self.job.before) % odd.checkpoint_every == 0:
            with rank.event("save checkpoint", "user_annotation"):
                rank.spend(rank.vary(odd.checkpoint_us * US, 0.05), "other.ckpt")

    def _profiler_overhead(self) -> None:
        """The profiler takes time of its own: rows of their own, on no thread of the program."""
        rank, odd = self.rank, self.job.odd
        for _ in range(odd.overhead_events):
            with rank.event("Activity Buffer Request", "overhead"):
                rank.spend(rank.vary(odd.overhead_us * US / odd.overhead_events, 0.1), "other.prof")
            self._spend_python(3.0)

    def _spend_python(self, us: float) -> None:
        self.rank.spend(self.rank.vary(us * US, 0.05), "over.python")

    def _instant(self, sign: int) -> None:
        """A ``[memory]`` instant: an activation comes or goes."""
        size = sign * 2 * self.job.model.tokens * self.job.model.hidden
        self._allocated += size
        if self.job.recording.instants and self._graph is None:
            totals = {"Bytes": size or 512, "Total Allocated": self._allocated, "Total Reserved": self._reserved}
            self.rank.instants.append((self.rank.now, totals))

    @staticmethod
    def _every(count: int, places: int, offset: int = 0) -> set[int]:
        """``count`` places, evenly spread."""
        return {min(round((index + 0.5) * places / count) + offset, places - 1) for index in range(count)}
