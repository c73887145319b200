"""The 28 classes of §4.4: how each fault is injected, how it is taken out again, and what a right analysis says.

``CLASSES`` is a table; a line's checks are the whole meaning of "right" for its class. Injected shares are spread over
1 to 50 % of the step, or to what the class can reach.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from simulator import right, truth
from simulator.job import US, Comm, Data, Extra, Host, Job, Late, Memory, Model, Odd, Reads, Tiny
from simulator.kernels import A100, H100
from simulator.model import device_ns, kernels_of, layers_of
from simulator.right import Check, Severity, by_rank, finds, leads, leaf, never, share_of
from simulator.sample import added, averaging, plain, whole

LOWEST, HIGHEST = 0.01, 0.50
_MEBIBYTE = 1 << 20

Inject = Callable[[random.Random, float], Job]
Relieve = Callable[[Job], Job]


@dataclass(frozen=True)
class Class:
    """One class of faults.

    Attributes:
        severity: the share of the step that the fault takes in truth, usually that of its leaf.
        inject: a job with the fault at a share; ``relieve`` the same job without it, ``None`` where nothing is to save.
        checks: all must hold.
        bound: the bound a finding about it names; empty where none is expected.
        high: the largest share that is drawn, ``low`` the smallest.
    """

    code: str
    what: str
    group: str
    severity: Severity
    inject: Inject
    checks: tuple[Check, ...]
    relieve: Relieve | None = None
    bound: str = ""
    low: float = LOWEST
    high: float = HIGHEST


def _healthy(rng: random.Random, share: float) -> Job:
    return plain(rng)


def _chain(rng: random.Random, share: float) -> Job:
    job, count = plain(rng), rng.randint(4, 10)
    return replace(job, extra=Extra(chain=count, chain_us=added(job, share) / count))


def _small(rng: random.Random, share: float) -> Job:
    job = plain(rng, low_ms=1.2, high_ms=2.5, layers=(1,), chips=(A100, H100))
    host = replace(job.host, launch_us=rng.uniform(3.0, 4.0), operator_us=rng.uniform(5, 8), between_us=2.0)
    each_us = rng.uniform(6.5, 9.5)
    return replace(job, host=host, extra=Extra(small=max(round(added(job, share) / each_us), 1), small_us=each_us))


def _fp32(rng: random.Random, share: float) -> Job:
    """A recommender: FP32 layers between look-ups, which no compiler fuses; nothing uses tensor cores."""
    job = plain(rng, chips=(A100, H100), layers=(1,))
    model = Model(1, hidden=512, tokens=rng.choice([2048, 4096]), fp32=True, attention=False, gathers=rng.randint(4, 8))
    job = replace(job, model=replace(model, gather_rows=1 << 14))
    own = sum(kernel.ns for kernel in kernels_of(job) if kernel.leaf == "compute.math")
    looked_up = [kernel.ns for kernel in kernels_of(job) if "index_select" in kernel.operators[-1]]
    rest = device_ns(job) - own - sum(looked_up)
    rows = (own / share - own - rest) / sum(looked_up) * job.model.gather_rows
    return replace(job, model=replace(job.model, gather_rows=max(round(rows), 512)))


def _misaligned(rng: random.Random, share: float) -> Job:
    """A last linear map to a number of words that is no multiple of 8: the largest that still has many rows."""
    job = plain(rng)
    for words in (50_257, 10_003, 1_001):
        one = replace(job, model=replace(job.model, head_rows=4096, vocabulary=words))
        per_row = (device_ns(one) - device_ns(job)) / 4096
        rows = round(added(job, share) * US / per_row / 8) * 8
        if rows >= 2048:
            break
    return replace(one, model=replace(one.model, head_rows=max(rows, 2048)))


def _launches(rng: random.Random, share: float, reads: int = 0) -> Job:
    job = plain(rng, low_ms=1.2, high_ms=3.0, layers=(1,), chips=(A100, H100), readback=True)
    tiny = Tiny(1, operator_us=rng.uniform(25, 60), kernel_us=rng.uniform(2.5, 7.5))
    idle_us = tiny.operator_us + job.host.launch_us + 2 * job.host.between_us - tiny.kernel_us
    return replace(job, tiny=replace(tiny, count=max(round(added(job, share) / idle_us), 1), reads=reads))


def _looks_synced(rng: random.Random, share: float) -> Job:
    """Launch-bound, with values read back among the launches: there is no queue that a read could drain."""
    return _launches(rng, share, reads=rng.randint(2, 4))


def _drained(rng: random.Random, share: float) -> Job:
    job, count = plain(rng, readback=True), rng.randint(2, 6)
    return replace(job, reads=Reads(count, after_us=added(job, share) / count))


def _pageable(rng: random.Random, share: float) -> Job:
    job, rate = plain(rng), rng.uniform(3.0, 8.0)
    return replace(job, data=replace(job.data, bytes=round(added(job, share) * US * rate), gb_per_s=rate, pinned=False))


def _pinned(rng: random.Random, share: float) -> Job:
    job = plain(rng)
    rate = rng.uniform(0.6, 0.85) * job.chip.pcie_gb_per_s
    return replace(job, data=replace(job.data, bytes=round(added(job, share) * US * rate), gb_per_s=rate))


def _retries(rng: random.Random, share: float) -> Job:
    job, count = plain(rng), rng.randint(1, 3)
    each_us, freed = added(job, share) / count, rng.uniform(0.4, 0.8)
    memory = Memory(retries=count, free_us=freed * each_us, malloc_us=(1 - freed) * each_us,
                    reserved_bytes=round(0.93 * job.chip.memory_bytes))  # fmt: skip
    return replace(job, memory=memory, recording=replace(job.recording, instants=True))


def _recomputed(rng: random.Random, share: float) -> Job:
    """Nodes of a layer are dropped until running them again takes its share."""
    job = plain(rng)
    layer = layers_of(job)[0]
    order = list(range(len(layer)))
    rng.shuffle(order)
    wanted, chosen, found = added(job, share) * US / job.model.layers, [], 0.0
    for at in order:
        own = sum(kernel.ns for kernel in layer[at].forward)
        if found + own / 2 <= wanted:
            chosen.append(at)
            found += own
    memory = Memory(recomputed=tuple(sorted(chosen or [order[0]])), reentrant=rng.random() < 0.5)
    return replace(job, memory=memory)


def _wire(rng: random.Random, share: float) -> Job:
    """Buckets overlap with backward, but there is more to send than backward can hide."""
    job = averaging(rng, plain(rng))
    hidden_us = 0.55 * device_ns(job) / US
    return _sized(job, added(job, share) + hidden_us)


def _sized(job: Job, total_us: float) -> Job:
    """Buckets of a size that all of them together take ``total_us``."""
    comm, count = job.comm, job.comm.buckets * job.model.layers
    each_us = max(total_us / count - comm.latency_us, 1.0)
    factor = 2 * (comm.ranks - 1) / comm.ranks
    return replace(job, comm=replace(comm, bytes=whole(each_us * US * comm.bus_gb_per_s / factor)))


def _latency(rng: random.Random, share: float) -> Job:
    job = plain(rng, low_ms=1.5, high_ms=4.0, layers=(1,), readback=True)
    latency_us = rng.uniform(32, 55)
    comm = Comm(
        "ddp", ranks=rng.choice([2, 3, 4]), buckets=max(round(added(job, share) / latency_us), 1),
        bytes=whole(rng.uniform(4_000, 60_000)), bus_gb_per_s=rng.uniform(60, 200), latency_us=latency_us,
        overlapped=False,
    )  # fmt: skip
    return replace(job, comm=comm)


def _not_overlapped(rng: random.Random, share: float) -> Job:
    job = averaging(rng, plain(rng))
    return _sized(replace(job, comm=replace(job.comm, overlapped=False)), added(job, share))


def _late_input(rng: random.Random, share: float) -> Job:
    job = averaging(rng, plain(rng, readback=True), ranks=(4,), hidden_ratio=0.15)
    return replace(job, late=Late(rng.randrange(4), wait_us=added(job, share)))


def _throttled(rng: random.Random, share: float) -> Job:
    job = averaging(rng, plain(rng, readback=True), ranks=(4,), hidden_ratio=0.15)
    return replace(job, late=Late(rng.randrange(4), slow_ratio=1.0 / (1.0 - share)))


def _sharded(rng: random.Random, share: float) -> Job:
    """Three passes of parameters over the wire although a fifth of the memory is in use."""
    job = plain(rng, layers=(2,), low_ms=10.0, high_ms=40.0)
    ranks, bus = rng.choice([2, 4]), rng.uniform(20, 200)
    device_us = device_ns(job) / US
    each_us = (0.45 * device_us + added(job, share)) / (3 * job.model.layers)
    comm = Comm("fsdp", ranks, bytes=whole(each_us * US * bus * ranks / (ranks - 1)), bus_gb_per_s=bus)
    used = round(0.2 * job.chip.memory_bytes)
    memory = Memory(allocated_bytes=round(0.9 * used), reserved_bytes=used)
    return replace(job, comm=comm, memory=memory, recording=replace(job.recording, instants=True))


def _pipeline(rng: random.Random, share: float) -> Job:
    stages = rng.choice([2, 3, 4]) if share > 0.15 else 2
    batches = min(max(round((stages - 1) * (1 - share) / share), 1), 16)
    job = plain(rng, layers=(1,), readback=True)
    model = Model(1, hidden=2048, tokens=rng.choice([2048, 4096, 8192]), lean=True)
    comm = Comm("pipeline", stages, bytes=2 * model.tokens * model.hidden, microbatches=batches,
                bus_gb_per_s=rng.uniform(100, 250), latency_us=rng.uniform(8, 20))  # fmt: skip
    return replace(job, model=model, comm=comm, steps=8)


def _contended(rng: random.Random, share: float) -> Job:
    beside = rng.uniform(0.40, 0.55)
    job = averaging(rng, plain(rng), hidden_ratio=beside)
    # What runs beside collectives takes ``beside`` of the step; ``share`` of the step is to be lost there.
    return replace(job, comm=replace(job.comm, slow_ratio=1.0 / (1.0 - min(share / beside, 0.45))))


def _compiling(rng: random.Random, share: float) -> Job:
    """Half of the draws recompile in one to three steps, half in every step."""
    job = plain(rng)
    if rng.random() < 0.5:
        steps = tuple(sorted(rng.sample(range(1, job.steps - 1), rng.randint(1, 3))))
        compile_us = added(job, share) * job.steps / len(steps)
        return replace(job, odd=Odd(steps, compile_us + 20_000.0))
    host = replace(job.host, readback=True)
    return replace(job, host=host, before=2, odd=Odd(tuple(range(-5, job.steps)), added(job, share)))


def _profiled(rng: random.Random, share: float) -> Job:
    job = plain(rng, readback=True)
    return replace(job, odd=Odd(overhead_us=added(job, share), overhead_events=rng.randint(1, 4)))


def _with_python(job: Job, share: float) -> Job:
    """The host's own Python makes every step longer than its kernels: the device idles for ``share`` of it."""
    python_us = added(job, share) + device_ns(job) / US - _issuing_us(job)
    return replace(job, before=2, host=replace(job.host, readback=False, python_us=max(python_us, 1.0)))


def _issuing_us(job: Job) -> float:
    """About how long the host takes to issue a step."""
    host = job.host
    if job.odd.graph:
        return 150.0
    per_kernel = host.operator_us + host.launch_us + host.between_us + 2.0
    return (per_kernel + host.launch_us * bool(job.extra.second_device_ratio)) * sum(1 for _ in kernels_of(job)) + 150.0


def _graph(rng: random.Random, share: float) -> Job:
    return _with_python(replace(plain(rng), odd=Odd(graph=True)), share)


def _streams(rng: random.Random, share: float) -> Job:
    job, count = plain(rng), rng.randint(3, 8)
    return replace(job, extra=Extra(side=count, side_us=1.5 * share * device_ns(job) / US / count))


def _two_devices(rng: random.Random, share: float) -> Job:
    job = replace(plain(rng), extra=Extra(second_device_ratio=rng.uniform(0.1, 0.8)))
    return _with_python(job, share)


def _empty(rng: random.Random, share: float) -> Job:
    job = plain(rng)
    return replace(job, recording=replace(job.recording, has_device=False, has_launches=rng.random() < 0.5))


def _truncated(rng: random.Random, share: float) -> Job:
    """The capture begins in the middle of a step, and part of the launch calls is lost."""
    job = _with_python(plain(rng), share)
    lost = rng.choice([0.0, rng.uniform(0.02, 0.3)])
    return replace(job, recording=replace(job.recording, cut_start=True, lost_launches=lost))


def _skewed_clocks(rng: random.Random, share: float) -> Job:
    job = _late_input(rng, share)
    offsets = tuple(round(rng.uniform(-5e6, 5e6)) for _ in range(job.comm.ranks))
    return replace(job, recording=replace(job.recording, offsets_ns=offsets))


def _without(**defaults: object) -> Relieve:
    return lambda job: replace(job, **defaults)  # type: ignore[arg-type]


def _fast_copy(job: Job) -> Job:
    return replace(job, data=Data(fetch_us=job.data.fetch_us))


def _no_python(job: Job) -> Job:
    return replace(job, host=replace(job.host, python_us=0.0), before=5)


def _no_comm(job: Job) -> Job:
    return replace(job, comm=replace(job.comm, bytes=9216, latency_us=1.0))


def _tensor_cores(job: Job) -> Job:
    return replace(job, model=replace(job.model, tf32=True))


def _hidden_comm(job: Job) -> Job:
    return replace(job, comm=replace(job.comm, overlapped=True))


_NOT_INPUT_NOR_COMM = never("input-bound", "comm-bound")

CLASSES: tuple[Class, ...] = (
    Class("G01", "healthy GEMM", "healthy", lambda case: 0.0, _healthy, (share_of("compute.math"), right.no_alarm)),
    Class("G02", "bandwidth-limited chain", "kernels", leaf("compute.membw"), _chain,
          (share_of("compute.membw"), leads("compute.membw"), _NOT_INPUT_NOR_COMM),
          _without(extra=Extra()), "memory-bound"),
    Class("G03", "small kernels", "kernels", leaf("compute.small"), _small,
          (share_of("compute.small"), leads("compute.small"), _NOT_INPUT_NOR_COMM),
          _without(extra=Extra()), "overhead-bound"),
    Class("G04", "FP32 GEMM", "kernels", leaf("compute.math"), _fp32,
          (share_of("compute.math"), finds("CP001"), _NOT_INPUT_NOR_COMM), _tensor_cores, "compute-bound"),
    Class("G05", "misaligned dimensions", "kernels", by_rank(truth.misaligned_share), _misaligned,
          (share_of("compute.math"), right.efficiency_of_misaligned, _NOT_INPUT_NOR_COMM),
          lambda job: replace(job, model=replace(job.model, vocabulary=50_304),
                              reached={**job.reached, "misaligned gemm": job.reached["gemm"]}), "compute-bound"),
    Class("G06", "launch-bound", "host", leaf("over.dispatch"), _launches,
          (share_of("over.dispatch"), leads("over.dispatch"), _NOT_INPUT_NOR_COMM),
          _without(tiny=Tiny()), "overhead-bound"),
    Class("G07", "launch-bound that looks sync-bound", "host", leaf("over.dispatch"), _looks_synced,
          (share_of("over.dispatch"), leads("over.dispatch"), never("overhead-bound (sync)"), _NOT_INPUT_NOR_COMM),
          _without(tiny=Tiny()), "overhead-bound"),
    Class("G08", "sync drain", "host", leaf("sync.drain"), _drained,
          (share_of("sync.drain"), leads("sync.drain"), _NOT_INPUT_NOR_COMM), _without(reads=Reads()), "overhead-bound"),
    Class("G09", "pageable host-to-device copy", "input", leaf("input.h2d"), _pageable,
          (share_of("input.h2d"), leads("input.h2d"), never("comm-bound")), _fast_copy, "input-bound"),
    Class("G10", "exposed pinned copy", "input", leaf("input.h2d"), _pinned,
          (share_of("input.h2d"), leads("input.h2d"), never("comm-bound")), _fast_copy, "input-bound"),
    Class("G11", "allocator retries", "memory", leaf("mem.alloc"), _retries,
          (share_of("mem.alloc"), leads("mem.alloc"), _NOT_INPUT_NOR_COMM), _without(memory=Memory()), "memory-bound"),
    Class("G12", "recompute", "memory", leaf("mem.recompute"), _recomputed,
          (share_of("mem.recompute"), leads("mem.recompute", "compute.membw"), _NOT_INPUT_NOR_COMM),
          _without(memory=Memory()), "memory-bound", high=0.20),
    Class("G13", "exposed all-reduce, bandwidth", "communication", leaf("comm.bw"), _wire,
          (share_of("comm.bw"), leads("comm.bw"), never("input-bound")), _no_comm, "comm-bound"),
    Class("G14", "latency-bound buckets", "communication", leaf("comm.lat"), _latency,
          (share_of("comm.lat"), leads("comm.lat"), never("input-bound")), _no_comm, "comm-bound"),
    Class("G15", "no overlap", "communication", leaf("comm.bw"), _not_overlapped,
          (share_of("comm.bw"), finds("CO001", "no-overlap"), never("input-bound")), _hidden_comm, "comm-bound"),
    Class("G16", "skew from an input-slow rank", "communication", right.waiting, _late_input,
          (share_of("comm.skew"), right.names_late_rank, never("comm-bound")), _without(late=Late()), "input-bound"),
    Class("G17", "skew from a throttled rank", "communication", right.waiting, _throttled,
          (share_of("comm.skew"), right.names_late_rank, never("comm-bound", "input-bound")), _without(late=Late())),
    Class("G18", "FSDP over-sharded", "communication", leaf("comm.bw", "comm.lat"), _sharded,
          (share_of("comm."), right.gathers_move_twice_the_scatters, never("input-bound")), _no_comm, "comm-bound"),
    Class("G19", "pipeline bubble", "communication", leaf("comm.skew"), _pipeline,
          (share_of("comm.skew"), never("input-bound", "comm-bound (bandwidth)")), None, low=0.06),
    Class("G20", "NCCL slows compute", "communication", by_rank(truth.contended_share), _contended,
          (share_of("compute.math"), share_of("comm."), never("input-bound")),
          lambda job: replace(job, comm=replace(job.comm, slow_ratio=1.0)), high=0.20),
    Class("G21", "compile in the window", "host", by_rank(truth.compiling_share), _compiling,
          (right.compile_is_apart, _NOT_INPUT_NOR_COMM), _without(odd=Odd()), "overhead-bound"),
    Class("G22", "profiler overhead", "host", leaf("other.prof"), _profiled,
          (share_of("other.prof"), leads("other.prof"), _NOT_INPUT_NOR_COMM), _without(odd=Odd())),
    Class("G23", "CUDA graph", "robustness", leaf("over.python"), _graph,
          (share_of("over.python"), leads("over.python"), share_of("compute.math"), _NOT_INPUT_NOR_COMM),
          _no_python, "overhead-bound"),
    Class("G24", "multi-stream compute", "robustness", leaf("compute.membw"), _streams,
          (share_of("compute.membw"), share_of("compute.math"), _NOT_INPUT_NOR_COMM)),
    Class("G25", "two GPUs in one trace", "robustness", leaf("over.python"), _two_devices,
          (share_of("over.python"), share_of("compute.math"), right.judges_the_first_device, _NOT_INPUT_NOR_COMM),
          _no_python, "overhead-bound"),
    Class("G26", "empty GPU", "robustness", lambda case: 0.0, _empty, (right.nothing_ran,)),
    Class("G27", "truncated capture", "robustness", leaf("over.python"), _truncated,
          (share_of("over.python"), share_of("compute.math"), _NOT_INPUT_NOR_COMM), _no_python, "overhead-bound"),
    Class("G28", "clock skew between ranks, 5 ms", "robustness", right.waiting, _skewed_clocks,
          (share_of("comm.skew"), right.names_late_rank, never("comm-bound")), _without(late=Late()), "input-bound"),
)  # fmt: skip

BY_CODE = {entry.code: entry for entry in CLASSES}
