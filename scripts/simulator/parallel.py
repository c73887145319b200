"""Several ranks: gradients that are averaged, layers that are sharded, stages that hand on micro-batches."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.job import US, Job
from simulator.kernels import Kernel
from simulator.loop import COMPUTE_STREAM, Loop, Program
from simulator.machine import BACKWARD, MAIN, Meeting, Rank, Work, run

COMM_STREAM, RECEIVE_STREAM = 20, 24
#: What a collective moves over the busiest link, as a multiple of its bytes (nccl-tests PERFORMANCE.md).
_LINK_FACTOR = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "_allgather_base": lambda n: (n - 1) / n,
    "_reduce_scatter_base": lambda n: (n - 1) / n,
    "send": lambda n: 1.0,
    "recv": lambda n: 1.0,
}
KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
OPERATORS = {
    "allreduce": "c10d::allreduce_",
    "_allgather_base": "c10d::_allgather_base_",
    "_reduce_scatter_base": "c10d::_reduce_scatter_base_",
    "send": "c10d::send",
    "recv": "c10d::recv_",
}


class World:
    """The collectives of a job, by group and number: the first rank to come makes one, the others join it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._meetings: dict[tuple[str, int], Meeting] = {}

    def join(self, group: str, number: int, name: str, size: int, moved: int) -> Meeting:
        """The meeting of one collective of ``size`` ranks that moves ``moved`` bytes."""
        key = group, number
        if key not in self._meetings:
            comm = self.job.comm
            source = np.random.Generator(np.random.PCG64([self.job.seed, zlib.crc32(repr(key).encode())]))
            wire_ns = moved * _LINK_FACTOR[name](size) / comm.bus_gb_per_s
            latency_ns = comm.latency_us * US * (1 + 0.05 * float(np.clip(source.standard_normal(), -2, 2)))
            wire_ns *= 1 + 0.02 * float(np.clip(source.standard_normal(), -2, 2))
            self._meetings[key] = Meeting(size, round(latency_ns), round(wire_ns))
        return self._meetings[key]


def group_of(job: Job) -> tuple[str, str]:
    """Name and description of the process group that all ranks form."""
    return ("3", "PIPELINE_MODEL_PARALLEL_GROUP") if job.comm.kind == "pipeline" else ("0", "default_pg")


class Parallel(Loop):
    """A rank that takes part in collectives."""

    def __init__(self, job: Job, rank: Rank, world: World) -> None:
        super().__init__(job, rank)
        self.world = world
        self._numbers: dict[str, int] = {}

    def collective(
        self, name: str, elements: int, dtype: str, *, stream: int = COMM_STREAM, after: Sequence[Work] = (),
        peers: tuple[int, int] | None = None,
    ) -> Program:  # fmt: skip
        """One collective of all ranks, or a transfer from one to another of them; gives its work.

        Process groups count the collectives that all run; of transfers every rank counts its own.
        """
        rank, number = self.rank, self._count("collectives" if peers is None else "transfers")
        meets, size = (str(peers), 2) if peers else ("all", self.job.comm.ranks)
        moved = elements * (2 if dtype == "BFloat16" else 4)
        work = Work(KERNELS[name], "kernel", "comm", 0, stream, after=tuple(after))
        work.meeting = self.world.join(meets, self._count(meets), name, size, moved)
        args = self._metadata(name, elements, dtype, number, peers)
        work.args = {
            "registers per thread": 96, "shared memory": 87_568, "blocks per SM": 24 / self.job.chip.sms,
            "warps per SM": 24 * 17 / self.job.chip.sms, "grid": [24, 1, 1], "block": [544, 1, 1],
            "est. achieved occupancy %": 0, **(args if self.job.recording.metadata != "none" else {}),
        }  # fmt: skip
        with rank.event(OPERATORS[name]):
            rank.spend(rank.vary(8 * US), "over.dispatch")
            with rank.event("record_param_comms", **args):
                rank.spend(rank.vary(6 * US), "over.dispatch")
                rank.call("cudaEventRecord", 900)
                if after:
                    rank.wait_on_device(stream, COMPUTE_STREAM)
                yield from self.launch([work], "cudaLaunchKernelExC")
                rank.spend(rank.vary(5 * US), "over.dispatch")
        return work

    def _count(self, what: str) -> int:
        self._numbers[what] = self._numbers.get(what, 0) + 1
        return self._numbers[what]

    def _metadata(
        self, name: str, elements: int, dtype: str, number: int, peers: tuple[int, int] | None
    ) -> dict[str, Any]:
        size = self.job.comm.ranks
        group, description = group_of(self.job)
        args: dict[str, Any] = {
            "Collective name": name,
            "In msg nelems": elements // size if name == "_allgather_base" else elements,
            "Out msg nelems": elements // size if name == "_reduce_scatter_base" else elements,
            "Group size": size, "dtype": dtype, "In split size": "[]", "Out split size": "[]",
            "Process Group Name": group, "Process Group Description": description,
            "Process Group Ranks": str(list(range(size))), "Rank": self.rank.index,
        }  # fmt: skip
        if self.job.recording.metadata == "full":
            args["Seq"] = number
        if peers is not None:  # torch names the other side alone
            args |= {"Dst Rank": peers[1]} if name == "send" else {"Src Rank": peers[0]}
        return args


class DataParallel(Parallel):
    """Gradients averaged in buckets, as soon as they are there or all at the end."""

    wrapper = "DistributedDataParallel.forward"

    def __init__(self, job: Job, rank: Rank, world: World) -> None:
        super().__init__(job, rank, world)
        self._open: list[Work] = []

    def _bucket(self) -> Program:
        comm = self.job.comm
        after = self.newest(COMPUTE_STREAM)
        work = yield from self.collective("allreduce", comm.bytes // 4, "Float", after=after)
        self._open.append(work)

    def after_node(self, layer: int, node: int) -> Program:
        """A bucket is full after every so many nodes."""
        comm, places = self.job.comm, len(self.layers[layer])
        due = sum(at == node for at in (round((i + 1) * places / comm.buckets) - 1 for i in range(comm.buckets)))
        for _ in range(due if comm.overlapped else 0):
            yield from self._bucket()

    def after_backward(self) -> Program:
        """What was not sent yet; then the optimizer waits for all of it."""
        comm = self.job.comm
        for _ in range(0 if comm.overlapped else comm.buckets * len(self.layers)):
            yield from self._bucket()
        self.wait_for(self._open)
        self._open = []


class Sharded(Parallel):
    """Parameters gathered before a layer runs, forward and backward; gradients scattered after it (FSDP, ZeRO-3)."""

    wrapper = "FullyShardedDataParallel.forward"

    def __init__(self, job: Job, rank: Rank, world: World) -> None:
        super().__init__(job, rank, world)
        self._gathered: dict[tuple[int, bool], Work] = {}
        self._scattered: list[Work] = []

    def _gather(self, layer: int, *, backward: bool) -> Program:
        if 0 <= layer < len(self.layers) and (layer, backward) not in self._gathered:
            comm = self.job.comm
            # Not earlier than the layer before: the gathered parameters need memory.
            after = self.newest(COMPUTE_STREAM)
            work = yield from self.collective("_allgather_base", comm.bytes // 2, "BFloat16", after=after)
            self._gathered[layer, backward] = work

    def before_layer(self, layer: int, *, backward: bool) -> Program:
        """Gather this layer if nobody has, and the next one ahead of time."""
        yield from self._gather(layer, backward=backward)
        yield from self._gather(layer - 1 if backward else layer + 1, backward=backward)
        self.wait_for([self._gathered[layer, backward]])

    def after_layer(self, layer: int, *, backward: bool) -> Program:
        """Scatter the gradients."""
        if backward:
            comm, after = self.job.comm, self.newest(COMPUTE_STREAM)
            work = yield from self.collective("_reduce_scatter_base", comm.bytes // 2, "BFloat16", after=after)
            self._scattered.append(work)

    def after_backward(self) -> Program:
        """The optimizer waits for the gradients."""
        yield from ()
        self.wait_for(self._scattered)
        self._scattered, self._gathered = [], {}


class Stage(Parallel):
    """One stage of a pipeline: all micro-batches forward, then all backward (GPipe)."""

    def __init__(self, job: Job, rank: Rank, world: World) -> None:
        super().__init__(job, rank, world)
        self.passes = job.comm.microbatches

    def forward(self) -> Program:
        """Receive, compute, send, for every micro-batch; only the first batch of the step is copied to the device."""
        yield from ()

    def backward(self) -> Program:
        """Both passes: the micro-batches of a stage follow each other, the stages wait for each other."""
        rank, comm = self.rank, self.job.comm
        first, last = rank.index == 0, rank.index == comm.ranks - 1
        for _ in range(comm.microbatches):
            if not first:
                yield from self._transfer("recv", rank.index - 1, rank.index)
            yield from self._compute(lambda node: node.forward)
            if not last:
                yield from self._transfer("send", rank.index, rank.index + 1)
        rank.thread = BACKWARD
        for _ in range(comm.microbatches):
            if not last:
                yield from self._transfer("recv", rank.index + 1, rank.index)
            yield from self._compute(lambda node: node.backward, backward=True)
            if not first:
                yield from self._transfer("send", rank.index, rank.index - 1)
        rank.thread = MAIN

    def _compute(self, kernels: Any, *, backward: bool = False) -> Program:
        for layer in self.layers:
            for node in reversed(layer) if backward else layer:
                chosen: tuple[Kernel, ...] = kernels(node)
                if not backward:
                    for kernel in chosen:
                        yield from self.issue(kernel)
                    continue
                with self.rank.event(f"autograd::engine::evaluate_function: {node.name}"), self.rank.event(node.name):
                    for kernel in chosen:
                        yield from self.issue(kernel)

    def _transfer(self, name: str, source: int, target: int) -> Program:
        comm = self.job.comm
        stream = RECEIVE_STREAM if name == "recv" else COMM_STREAM
        after = self.newest(COMPUTE_STREAM) if name == "send" else ()
        peers = source, target
        work = yield from self.collective(name, comm.bytes // 2, "BFloat16", stream=stream, after=after, peers=peers)
        if name == "recv":
            self.wait_for([work])


_KINDS: dict[str, type[Parallel]] = {"ddp": DataParallel, "fsdp": Sharded, "pipeline": Stage}


def simulate(job: Job) -> list[Rank]:
    """Run the job; gives its ranks with all they did."""
    world = World(job)
    programs = {}
    for index in range(job.comm.ranks):
        rank = Rank(index, seed=job.seed, jitter_ratio=job.host.jitter_ratio, queue=job.host.queue)
        kind = _KINDS.get(job.comm.kind)
        loop = kind(job, rank, world) if kind else Loop(job, rank)
        programs[rank] = loop.program()
    run(programs)
    return list(programs)
