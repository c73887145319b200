"""How each fault of §4.4 is put into a job: its size follows from the share of the step it is to take.

``relieve`` functions take a fault out again.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from simulator.job import US, Comm, Extra, Job, Late, Memory, Model, Odd, Reads, Tiny
from simulator.kernels import A100, H100
from simulator.model import device_ns, kernels_of, layers_of
from simulator.sample import added, averaging, plain, whole


def nothing(rng: random.Random, share: float) -> Job:
    """Nothing is wrong."""
    return plain(rng)


def pointwise_chain(rng: random.Random, share: float) -> Job:
    """Four to ten kernels in a row over the same large tensor."""
    job, count = plain(rng), rng.randint(4, 10)
    return replace(job, extra=Extra(chain=count, chain_us=added(job, share) / count))


def small_kernels(rng: random.Random, share: float) -> Job:
    """Bursts of kernels of less than 10 µs, issued faster than they run."""
    job = plain(rng, low_ms=1.2, high_ms=2.5, layers=(1,), chips=(A100, H100))
    host = replace(job.host, launch_us=rng.uniform(3.0, 4.0), operator_us=rng.uniform(5, 8), between_us=2.0)
    each_us = rng.uniform(6.5, 9.5)
    return replace(job, host=host, extra=Extra(small=max(round(added(job, share) / each_us), 1), small_us=each_us))


def fp32_gemm(rng: random.Random, share: float) -> Job:
    """A recommender: FP32 layers between look-ups, which no compiler fuses; nothing uses tensor cores."""
    job = plain(rng, chips=(A100, H100), layers=(1,))
    model = Model(1, hidden=512, tokens=rng.choice([2048, 4096]), fp32=True, attention=False, gathers=rng.randint(4, 8))
    job = replace(job, model=replace(model, gather_rows=1 << 14))
    own = sum(kernel.ns for kernel in kernels_of(job) if kernel.leaf == "compute.math")
    looked_up = [kernel.ns for kernel in kernels_of(job) if "index_select" in kernel.operators[-1]]
    rest = device_ns(job) - own - sum(looked_up)
    rows = (own / share - own - rest) / sum(looked_up) * job.model.gather_rows
    return replace(job, model=replace(job.model, gather_rows=max(round(rows), 512)))


def misaligned_gemm(rng: random.Random, share: float) -> Job:
    """A last linear map to a number of words that is no multiple of 8: the largest that still has many rows."""
    job = plain(rng)
    for words in (50_257, 10_003, 1_001):
        one = replace(job, model=replace(job.model, head_rows=4096, vocabulary=words))
        per_row = (device_ns(one) - device_ns(job)) / 4096
        rows = round(added(job, share) * US / per_row / 8) * 8
        if rows >= 2048:
            break
    return replace(one, model=replace(one.model, head_rows=max(rows, 2048)))


def slow_launches(rng: random.Random, share: float, reads: int = 0) -> Job:
    """Operators of a few kilobytes: the host takes longer to issue them than the device to run them."""
    job = plain(rng, low_ms=1.2, high_ms=3.0, layers=(1,), chips=(A100, H100), readback=True)
    tiny = Tiny(1, operator_us=rng.uniform(25, 60), kernel_us=rng.uniform(2.5, 7.5))
    idle_us = tiny.operator_us + job.host.launch_us + 2 * job.host.between_us - tiny.kernel_us
    return replace(job, tiny=replace(tiny, count=max(round(added(job, share) / idle_us), 1), reads=reads))


def reads_among_launches(rng: random.Random, share: float) -> Job:
    """Launch-bound, with values read back among the launches: there is no queue that a read could drain."""
    return slow_launches(rng, share, reads=rng.randint(2, 4))


def drained_queue(rng: random.Random, share: float) -> Job:
    """Values read back in the middle of the forward pass; the host works with them before it goes on."""
    job, count = plain(rng, readback=True), rng.randint(2, 6)
    return replace(job, reads=Reads(count, after_us=added(job, share) / count))


def pageable_copy(rng: random.Random, share: float) -> Job:
    """The batch comes from memory that is not pinned."""
    job, rate = plain(rng), rng.uniform(3.0, 8.0)
    return replace(job, data=replace(job.data, bytes=round(added(job, share) * US * rate), gb_per_s=rate, pinned=False))


def pinned_copy(rng: random.Random, share: float) -> Job:
    """The batch comes from pinned memory, but in the way of the kernels."""
    job = plain(rng)
    rate = rng.uniform(0.6, 0.85) * job.chip.pcie_gb_per_s
    return replace(job, data=replace(job.data, bytes=round(added(job, share) * US * rate), gb_per_s=rate))


def allocator_retries(rng: random.Random, share: float) -> Job:
    """The cache of the allocator is exhausted in every step."""
    job, count = plain(rng), rng.randint(1, 3)
    each_us, freed = added(job, share) / count, rng.uniform(0.4, 0.8)
    memory = Memory(retries=count, free_us=freed * each_us, malloc_us=(1 - freed) * each_us,
                    reserved_bytes=round(0.93 * job.chip.memory_bytes))  # fmt: skip
    return replace(job, memory=memory, recording=replace(job.recording, instants=True))


def recomputed_nodes(rng: random.Random, share: float) -> Job:
    """Part of every layer is run again: a block of nodes, or, without reentrance, the nodes a policy chose.

    The loss is read in every step: kernels issued before the recording would not show what they were issued for.
    """
    job, reentrant = plain(rng, readback=True), rng.random() < 0.5
    layer = layers_of(job)[0]
    order = list(range(len(layer)))
    if reentrant:
        first = rng.randrange(len(layer))
        order = order[first:] + order[:first]
    else:
        rng.shuffle(order)
    wanted, chosen, found = added(job, share) * US / job.model.layers, order[:1], 0.0
    for at in order:
        if reentrant and at < order[0]:
            break  # a block ends with its layer
        own = sum(kernel.ns for kernel in layer[at].forward)
        if found + own / 2 <= wanted:
            chosen.append(at)
            found += own
        elif reentrant:
            break
    return replace(job, memory=Memory(recomputed=tuple(sorted({*chosen})), reentrant=reentrant))


def slow_wire(rng: random.Random, share: float) -> Job:
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


def small_buckets(rng: random.Random, share: float) -> Job:
    """Many small buckets after backward."""
    job = plain(rng, low_ms=1.5, high_ms=4.0, layers=(1,), readback=True)
    latency_us = rng.uniform(32, 55)
    comm = Comm(
        "ddp", ranks=rng.choice([2, 3, 4]), buckets=max(round(added(job, share) / latency_us), 1),
        bytes=whole(rng.uniform(4_000, 60_000)), bus_gb_per_s=rng.uniform(60, 200), latency_us=latency_us,
        overlapped=False,
    )  # fmt: skip
    return replace(job, comm=comm)


def no_overlap(rng: random.Random, share: float) -> Job:
    """Large buckets, sent when backward is over."""
    job = averaging(rng, plain(rng))
    return _sized(replace(job, comm=replace(job.comm, overlapped=False)), added(job, share))


def late_by_input(rng: random.Random, share: float) -> Job:
    """One of four ranks waits for its data in every step: its worker does not keep up."""
    job = averaging(rng, plain(rng, readback=True), ranks=(4,), hidden_ratio=0.15)
    job = replace(job, data=replace(job.data, workers=1), before=5)
    return replace(job, late=Late(rng.randrange(4), produce_us=added(job, share) + device_ns(job) / US + 200.0))


def late_by_clock(rng: random.Random, share: float) -> Job:
    """One of four ranks computes more slowly."""
    job = averaging(rng, plain(rng, readback=True), ranks=(4,), hidden_ratio=0.15)
    return replace(job, late=Late(rng.randrange(4), slow_ratio=1.0 / (1.0 - share)))


def oversharded(rng: random.Random, share: float) -> Job:
    """Three passes of parameters over the wire although a fifth of the memory is in use."""
    job = plain(rng, layers=(2,), low_ms=10.0, high_ms=40.0)
    ranks, bus = rng.choice([2, 4]), rng.uniform(20, 200)
    device_us = device_ns(job) / US
    each_us = (0.45 * device_us + added(job, share)) / (3 * job.model.layers)
    comm = Comm("fsdp", ranks, bytes=whole(each_us * US * bus * ranks / (ranks - 1)), bus_gb_per_s=bus)
    used = round(0.2 * job.chip.memory_bytes)
    memory = Memory(allocated_bytes=round(0.9 * used), reserved_bytes=used)
    return replace(job, comm=comm, memory=memory, recording=replace(job.recording, instants=True))


def pipeline_bubble(rng: random.Random, share: float) -> Job:
    """Two to four stages with so many micro-batches that the bubble has its share."""
    stages = rng.choice([2, 3, 4]) if share > 0.15 else 2
    batches = min(max(round((stages - 1) * (1 - share) / share), 1), 16)
    job = plain(rng, layers=(1,), readback=True)
    model = Model(1, hidden=2048, tokens=rng.choice([2048, 4096, 8192]), lean=True)
    comm = Comm("pipeline", stages, bytes=2 * model.tokens * model.hidden, microbatches=batches,
                bus_gb_per_s=rng.uniform(100, 250), latency_us=rng.uniform(8, 20))  # fmt: skip
    return replace(job, model=model, comm=comm, steps=8)


def contended_kernels(rng: random.Random, share: float) -> Job:
    """Kernels run more slowly beside collectives."""
    beside = rng.uniform(0.40, 0.55)
    job = averaging(rng, plain(rng), hidden_ratio=beside)
    # The collectives take ``beside`` of the step; about two thirds of that run beside kernels.
    lost = min(share / (0.65 * beside), 0.5)
    return replace(job, comm=replace(job.comm, slow_ratio=1.0 / (1.0 - lost)))


def recompiles(rng: random.Random, share: float) -> Job:
    """Half of the draws recompile in one to three steps, half in every step."""
    job = plain(rng)
    if rng.random() < 0.5:
        steps = tuple(sorted(rng.sample(range(1, job.steps - 1), rng.randint(1, 3))))
        compile_us = added(job, share) * job.steps / len(steps)
        return replace(job, odd=Odd(steps, compile_us + 20_000.0))
    host = replace(job.host, readback=True)
    return replace(job, host=host, before=2, odd=Odd(tuple(range(-5, job.steps)), added(job, share)))


def profiler_overhead(rng: random.Random, share: float) -> Job:
    """The profiler takes time of its own in every step."""
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


def python_between_graphs(rng: random.Random, share: float) -> Job:
    """The step is one graph; between two of them the host runs Python."""
    return _with_python(replace(plain(rng), odd=Odd(graph=True)), share)


def second_stream(rng: random.Random, share: float) -> Job:
    """Bandwidth-limited kernels on a second stream beside the model."""
    job, count = plain(rng), rng.randint(3, 8)
    return replace(job, extra=Extra(side=count, side_us=1.5 * share * device_ns(job) / US / count))


def second_device(rng: random.Random, share: float) -> Job:
    """A second device does part of the work again, and the host runs Python."""
    job = replace(plain(rng), extra=Extra(second_device_ratio=rng.uniform(0.1, 0.8)))
    return _with_python(job, share)


def no_device(rng: random.Random, share: float) -> Job:
    """Only the host was recorded; half of the time without launch calls."""
    job = plain(rng)
    return replace(job, recording=replace(job.recording, has_device=False, has_launches=rng.random() < 0.5))


def truncated_capture(rng: random.Random, share: float) -> Job:
    """The capture begins in the middle of a step, and part of the launch calls is lost."""
    job = _with_python(plain(rng), share)
    lost = rng.choice([0.0, rng.uniform(0.02, 0.3)])
    return replace(job, recording=replace(job.recording, cut_start=True, lost_launches=lost))


def late_with_skewed_clocks(rng: random.Random, share: float) -> Job:
    """One of four ranks waits for its data, and no clock agrees with another."""
    job = late_by_input(rng, share)
    offsets = tuple(round(rng.uniform(-5e6, 5e6)) for _ in range(job.comm.ranks))
    return replace(job, recording=replace(job.recording, offsets_ns=offsets))


def without(**defaults: object) -> Callable[[Job], Job]:
    """Set these fields back to what they are when nothing is wrong."""
    return lambda job: replace(job, **defaults)  # type: ignore[arg-type]


def fused_chain(job: Job) -> Job:
    """One kernel for the whole chain: it reads the first tensor and the other input of each, and writes once."""
    extra = job.extra
    return replace(job, extra=replace(extra, chain=1, chain_us=(extra.chain + 2) / 3 * extra.chain_us))


def as_graph(job: Job) -> Job:
    """The step launched as one CUDA graph: all its kernels run; no value is read among them, which graphs forbid."""
    return replace(job, odd=replace(job.odd, graph=True, captured=True), tiny=replace(job.tiny, reads=0))


def pinned(job: Job) -> Job:
    """The same batch from pinned memory."""
    return replace(job, data=replace(job.data, pinned=True, gb_per_s=pinned_gb_per_s(job)))


def pinned_gb_per_s(job: Job) -> float:
    """Return what pinned copies reach: the link's rate, or 2.5 times that of pageable ones (2.1 and 2.9 measured)."""
    return min(0.8 * job.chip.pcie_gb_per_s, 2.5 * job.data.gb_per_s)


def copied_aside(job: Job) -> Job:
    """The same batch on a stream of its own."""
    return replace(job, data=replace(job.data, own_stream=True))


def no_python(job: Job) -> Job:
    """No Python of the user."""
    return replace(job, host=replace(job.host, python_us=0.0), before=5)


def no_comm(job: Job) -> Job:
    """Next to nothing to send."""
    return replace(job, comm=replace(job.comm, bytes=9216, latency_us=1.0))


def tensor_cores(job: Job) -> Job:
    """FP32 matrices on the tensor cores."""
    return replace(job, model=replace(job.model, tf32=True))


def hidden_comm(job: Job) -> Job:
    """Buckets during backward."""
    return replace(job, comm=replace(job.comm, overlapped=True))


def aligned(job: Job) -> Job:
    """A vocabulary that is a multiple of 64, and kernels that reach what the others do."""
    words = -(-job.model.vocabulary // 64) * 64
    return replace(job, model=replace(job.model, vocabulary=words))


def without_contention(job: Job) -> Job:
    """Kernels as fast as without collectives beside them."""
    return replace(job, comm=replace(job.comm, slow_ratio=1.0))
