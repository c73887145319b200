"""Say whether the host can carry the loader's work, and how the run is without what other programs take of it."""

from collections.abc import Mapping

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import ready_ratio
from profilerkit.analysis.ranks.alike import SIBLING_CORES
from profilerkit.analysis.workers.queue import PREFETCH
from profilerkit.model import revise
from profilerkit.model.run import Workers
from profilerkit.model.step import PARTS, QUEUE, WAITS, Part, StepTimes
from profilerkit.units import format_count, format_ns, format_ratio


def opening_share(facts: Facts) -> float:
    """Share of the step in the openings of epochs, part of its wait: less work does not start workers sooner."""
    epochs, step = facts.loading.epochs if facts.loading is not None else None, facts.mean_step_ns
    if epochs is None or epochs.opening_ns is None or not epochs.steps or not step:
        return 0.0
    return min(epochs.opening_ns / (epochs.steps * step), facts.share(*WAITS))


#: CPU and run-queue time together own this much of a batch, and the second is this much of the first.
COMPUTING_SHARE = 0.9
QUEUED_RATIO = 0.2
CORES_IN_USE = 0.85  #: share of the usable cores that the workers keep busy
#: Share of the time in which the cgroup's quota held its threads (a choice: a burst at start-up causes some).
THROTTLED = 0.05
PRESSURE = 0.2  #: share of time in which processes waited for a core, where the workers' own run queue is not known
FULL_HOST = 0.9  #: host utilisation that leaves no core to spare
OWN_CORES = 0.8  #: of the cores in use, from which the run itself is what waits for them (a choice)
#: Share of a batch that is blocked, and of the looks at blocked workers that find a lock, from which
#: workers share a bottleneck instead of adding up: of two workers that only wait for each other one half does.
BLOCKED = 0.5
LOCKED = 1 / 3
#: Of the workers so many must still have data, in the mean, for more of them to mean more batches (a choice: those of
#: a short epoch start and end one after the other, and of two one may have half of the other's part).
WITH_DATA = 0.75
#: Of the host's memory more workers may fill up to here (a choice: ME003 calls a device full from here on).
MEMORY_IN_USE = 0.9


def shortage(facts: Facts) -> str | None:
    """Why more workers would find no core, as the number that says so; ``None`` where they would, or nobody knows."""
    workers = facts.workers
    if workers is None:
        return None
    queued, cpu = workers.time_ns("core"), workers.cpu_ns
    is_known = all(stage.run_queue_ns is not None for stage in workers.stages)
    computing = (queued + cpu) / max(workers.producer_ns, 1)
    if is_known and computing >= COMPUTING_SHARE and queued >= QUEUED_RATIO * cpu:
        return f"a batch computes {format_ns(cpu)} and waits {format_ns(queued)} for a core"
    cores = facts.usable_cores
    if cores and workers.cpu_cores is not None and workers.cpu_cores >= CORES_IN_USE * cores:
        return f"the workers keep {format_count(workers.cpu_cores)} of {cores:g} usable cores busy"
    throttled = facts.series("host.cpu_throttled")
    if throttled is not None and throttled.mean >= THROTTLED:
        return f"the CPU quota stops the processes {format_ratio(throttled.mean)} of the time"
    if cores and workers.count > cores and computing >= COMPUTING_SHARE:
        return f"{workers.count} workers compute on {cores:g} usable cores"
    if is_known or facts.taken:
        return None
    pressure, busy = facts.series("host.cpu_pressure"), facts.series("host.cpu")
    if pressure is not None and pressure.mean >= PRESSURE and computing >= COMPUTING_SHARE:
        return f"processes wait for a core {format_ratio(pressure.mean)} of the time"
    if busy is not None and busy.mean >= FULL_HOST:
        return f"the host's cores are {format_ratio(busy.mean)} busy"
    return None


def others_hold(facts: Facts) -> bool:
    """Return whether the cores that the batches wait for are taken by other programs, not by the run or a quota."""
    workers, cores = facts.workers, cores_in_use(facts)
    if workers is None or not cores or fills_its_cores(facts) is not False:
        return False
    throttled = facts.series("host.cpu_throttled")
    if throttled is not None and throttled.mean >= THROTTLED:
        return False
    # In the judged steps the workers may use more than over all samples.
    is_own = (workers.cpu_cores or 0.0) >= OWN_CORES * cores
    return workers.time_ns("core") >= QUEUED_RATIO * workers.cpu_ns and not is_own


def no_use(facts: Facts) -> str | None:
    """Why more workers would make no more batches; ``None`` where they would, or nobody knows."""
    workers = facts.workers
    if (held := shortage(facts) or lock_held(facts)) is not None or workers is None or workers.active is None:
        return held
    if workers.active >= WITH_DATA * workers.count:
        return None
    left = format_count(round(workers.active, 1))
    return f"on average only {left} of {workers.count} workers still had data: their shards differ in length"


def lock_held(facts: Facts) -> str | None:
    """Why workers hold each other up, as the number that says so; ``None`` where they do not, or it is not known."""
    workers = facts.workers
    if workers is None or workers.locked_ratio is None or workers.locked_ratio < LOCKED:
        return None
    if workers.share("fetch") < BLOCKED:
        return None
    return f"a blocked worker waited for a lock {format_ratio(workers.locked_ratio)} of the times it was sampled"


def memory_room(facts: Facts) -> int | None:
    """Workers that the host's free memory, or its control group's, has room for; ``None`` where it is not known."""
    workers, free = facts.workers, _free_bytes(facts)
    if workers is None or workers.memory_bytes is None or free is None:
        return None
    ahead = (facts.loader.prefetch_factor if facts.loader else None) or PREFETCH
    each = max(workers.memory_bytes + ahead * (workers.batch_bytes or 0), 1)
    return max(int(free / each), 0)


def batch_room(facts: Facts) -> int | None:
    """Batches that free memory has room for beside those under way; ``None`` where it is not known."""
    workers, free = facts.workers, _free_bytes(facts)
    if workers is None or not workers.batch_bytes or free is None:
        return None
    return max(int(free / workers.batch_bytes), 0)


def cores_in_use(facts: Facts) -> float | None:
    """Cores in use of those that the run may use, by whomever; all of them where that is not known."""
    busy = facts.series("host.cpu")
    if not facts.usable_cores or busy is None or not facts.has_whole_host:
        return facts.usable_cores
    return busy.mean * facts.usable_cores


def own_cores(facts: Facts) -> float | None:
    """Cores that the process and its workers use, mean; ``None`` where either was not sampled."""
    process, workers = facts.series("host.process_cores"), facts.series("host.worker_cores")
    # Of workers that live no longer than from one sample to the next their own records tell.
    recorded = facts.workers.cpu_cores if facts.workers is not None else None
    used = workers.mean if workers is not None else recorded
    if process is None or (used is None and _has_workers(facts)):
        return None
    return process.mean + (used or 0.0)


def fills_its_cores(facts: Facts) -> bool | None:
    """Return whether the run itself uses most of the cores in use, so that it waits for itself."""
    own, cores = own_cores(facts), cores_in_use(facts)
    if (facts.world_size or 1) > 1:
        siblings = facts.series(SIBLING_CORES)
        own = None if own is None or siblings is None else own + siblings.mean
        cores = (cores or 0.0) * (facts.host_ranks or 0)
    return None if own is None or not cores else own >= OWN_CORES * cores


def _has_workers(facts: Facts) -> bool:
    return facts.workers is not None or bool(facts.loader and facts.loader.num_workers)


def _free_bytes(facts: Facts) -> float | None:
    """Memory that may still be filled, of the host or of its control group; ``None`` where it is not known."""
    used, capacity = facts.series("host.memory_used"), facts.memory.host_capacity_bytes
    if used is None or not capacity:
        return None
    free = MEMORY_IN_USE * capacity - used.maximum
    limit, process = facts.series("host.cgroup_memory_limit"), facts.series("host.process_memory")
    if limit is not None and process is not None:
        # What the group itself reports holds file cache that the kernel gives up first.
        others = facts.series("host.worker_memory")
        if others is None and _has_workers(facts):
            return None
        free = min(free, MEMORY_IN_USE * limit.mean - process.maximum - (others.maximum if others is not None else 0.0))
    return free


UNKNOWN = "idle.unknown"
#: Less of a step in the queue for a processor is what every host takes (a choice: no rule speaks below it either).
_LEAST = 0.02
#: Share of the step in that queue from which growth, or a small saving, may be the machine's (a choice, as RU005's).
BUSY = 0.1
#: Less of the work on a batch in that queue leaves the replay of the loader as it is (a choice).
_LEAST_OF_A_BATCH = 0.1
#: More than this of what a thread does is not its queue: that of its waits was missed, and all parts bear it alike.
_MOST = 0.95


def contended(facts: Facts) -> Facts:
    """The facts in which time in the queue for a processor is a part of its own, where others hold the processors.

    Known are the queue of the training thread in its steps and in its waits, and that of the loader's workers, which
    the training waits for, and of the threads that share its operators. A device works meanwhile: then nothing is taken
    off. What a rank waits for others in collectives stays communication, whatever held them.
    """
    taken = _taken(facts)
    share = sum(taken.values())
    if share < _LEAST:
        return facts
    step = facts.mean_step_ns or 0.0
    left = [(part, 1.0 - taken[part.part] / part.share) for part in facts.parts]
    parts = [revise(part, time_ns=round(part.time_ns * kept), share=part.share * kept) for part, kept in left]
    parts.append(Part(part=QUEUE, family=PARTS[QUEUE][0], time_ns=round(share * step), share=share, source="derived"))
    ordered = tuple(sorted((part for part in parts if part.time_ns > 0), key=lambda part: -part.time_ns))
    ranks = list(facts.ranks)
    ranks[facts.judged_rank] = revise(facts.rank, breakdown=ordered)
    return revise(facts, parts=ordered, ranks=tuple(ranks), taken=share)


def quiet(facts: Facts) -> Facts:
    """The run as it would be with a free processor: no time in the queue, and shares of the step without it."""
    if not facts.taken:
        return facts
    left = 1.0 - facts.taken
    times = facts.steps.time_ns
    if times is not None:  # how much they vary is not known without the queue
        times = StepTimes(median=round(times.median * left), mean=round(times.mean * left), cv_ratio=times.cv_ratio)
    parts = tuple(revise(part, share=part.share / left) for part in facts.parts if part.part != QUEUE)
    seen, loading = facts.input, facts.loading
    if seen is not None and seen.queue_ratio:
        cpu = None if seen.cpu_ratio is None else ready_ratio(seen.cpu_ratio, seen.queue_ratio)
        seen = revise(seen, cpu_ratio=cpu, queue_ratio=0.0)
    workers = facts.workers and _unqueued(facts.workers)
    if loading is not None and facts.workers is not None and facts.workers.share("core") >= _LEAST_OF_A_BATCH:
        loading = revise(loading, queue=None)  # it was replayed with the batches as they came
    return revise(
        facts,
        parts=parts,
        # Which steps are slow beside others is the machine's doing as well.
        steps=revise(facts.steps, time_ns=times, slow=None),
        step_ns=facts.step_ns * left if facts.step_ns else facts.step_ns,
        step_error_ns=facts.step_error_ns * left if facts.step_error_ns else facts.step_error_ns,
        input=seen,
        workers=workers,
        loading=loading,
        # The traced steps queued as well, and their gaps would be taken for the program's.
        replay=None if facts.taken >= BUSY else facts.replay,
    )


def _taken(facts: Facts) -> Mapping[str, float]:
    """Part to the share of the step in which it queues for a processor; empty where that is not others' doing."""
    if facts.on_device or not facts.mean_step_ns or fills_its_cores(facts) is not False:
        return {}
    waits, whole = facts.share(*WAITS), min(facts.steps.queued_ratio or 0.0, 1.0)
    # A thread that waits for a collective is blocked, and in no queue.
    collectives = sum(part.share for part in facts.parts if part.family == "communication")
    ran = max(1.0 - waits - collectives, 0.0)
    known = facts.input.queue_ratio if facts.input is not None else None
    # Of the first fetch of an epoch no queue is known, and what starting workers takes stays.
    opening = opening_share(facts)
    usual = max(waits - opening, 0.0)
    in_waits = min(whole if known is None else known, whole / usual if usual else 0.0, 1.0)
    # The training thread's own queue beyond its waits is in all that it does.
    in_rest = max(whole - in_waits * usual, 0.0) / ran if ran else 0.0
    if in_rest > _MOST:
        in_waits = in_rest = min(whole, _MOST)
    left = opening + _left_to_wait(facts, ran * (1.0 - in_rest) + collectives, usual * (1.0 - in_waits))
    kept = dict.fromkeys(WAITS, max(left / waits, 1.0 - _MOST) if waits else 1.0)
    kept |= {part.part: 1.0 for part in facts.parts if part.family == "communication"}
    rest, unexplained = sum(part.share for part in facts.parts if part.part not in kept), facts.share(UNKNOWN)
    # Nobody knows which steps queued. A queue makes steps longer than the typical one, which is all that explains.
    first = min(in_rest * rest, _MOST * unexplained)
    in_known = (in_rest * rest - first) / (rest - unexplained) if rest > unexplained else 0.0
    taken = {part.part: part.share * (1.0 - kept.get(part.part, 1.0 - in_known)) for part in facts.parts}
    if unexplained:
        # A thread of the operators' pool queues, and the training thread spins for it: no calm traced step shows that.
        pool = facts.series("host.pool_queue")
        of_pool = pool.mean * (1.0 - whole) if pool is not None else 0.0
        taken[UNKNOWN] = first + min(of_pool, _MOST * unexplained - first)
    return taken


def _left_to_wait(facts: Facts, ran: float, waits: float) -> float:
    """Return what stays of the share ``waits`` where workers find a core and the rest of the step takes ``ran``."""
    workers, step = facts.workers, facts.mean_step_ns or 1.0
    if workers is None or not others_hold(facts):
        return waits
    # What the training thread computes as it receives batches stays as well.
    received = facts.share(*WAITS) * ((facts.input.cpu_ratio if facts.input is not None else None) or 0.0)
    # So does what their queue does not explain: batches that differ make a wait that no mean shows.
    pace_ns = _unqueued(workers).pace_ns
    unexplained = waits - (workers.pace_ns - pace_ns) / step
    return min(max(pace_ns / step - ran, received, unexplained), waits)


def _unqueued(workers: Workers) -> Workers:
    """The workers' batches without the time in which they waited for a core."""
    queued = workers.time_ns("core")
    if not queued:
        return workers
    producer = max(workers.producer_ns - queued, 1)
    # The hand-over runs beside the next batch.
    between = sum(stage.run_queue_ns or 0 for stage in workers.stages if stage.stage != "handover")
    return revise(
        workers,
        producer_ns=producer,
        interval_ns=max(workers.interval_ns - between, 1),
        parts=tuple(revise(part, share=part.time_ns / producer) for part in workers.parts if part.part != "core"),
        stages=tuple(
            revise(stage, time_ns=max(stage.time_ns - (stage.run_queue_ns or 0), 0), run_queue_ns=0)
            for stage in workers.stages
        ),
    )
