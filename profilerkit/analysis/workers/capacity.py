"""Whether the host can carry more loader workers: cores, quota, pressure and memory."""

from profilerkit.analysis.facts import Facts
from profilerkit.units import format_count, format_ns, format_ratio

#: CPU and run-queue time together own this much of a batch, and the second is this much of the first.
COMPUTING_SHARE = 0.9
QUEUED_RATIO = 0.2
#: Share of the usable cores that the workers keep busy.
CORES_IN_USE = 0.85
#: Share of the time in which the cgroup's quota held its threads (a choice: a burst at start-up causes some).
THROTTLED = 0.05
#: Share of time in which processes waited for a core, where the workers' own run queue is not known.
PRESSURE = 0.2
#: Host utilisation that leaves no core to spare.
FULL_HOST = 0.9
#: Signal: cores that the run's other ranks on this host and their workers use.
SIBLING_CORES = "host.sibling_cores"
#: Of the usable cores, from which the run itself is what waits for them (a choice).
OWN_CORES = 0.8
#: No more workers than this are proposed.
MOST_WORKERS = 16
#: Share of a batch that is blocked, and of the looks at blocked workers that find a lock, from which
#: workers share a bottleneck instead of adding up: of two workers that only wait for each other one half does.
BLOCKED = 0.5
LOCKED = 1 / 3
#: Of the workers so many must still have data, in the mean, for more of them to mean more batches (a choice: those of
#: a short epoch start and end one after the other, and of two one may have half of the other's part).
WITH_DATA = 0.75
#: Of the host's memory more workers may fill up to here (a choice: ME003 calls a device full from here on).
MEMORY_IN_USE = 0.9
#: Batches under way per worker where the loader's setting is not known: torch's default.
PREFETCH = 2


def shortage(facts: Facts) -> str | None:
    """Why more workers would find no core, as the number that says so; ``None`` where they would, or it is not known.

    Run-queue time and CPU time of the batches come before what is known of the whole host: other processes' pressure
    is not the loader's.
    """
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
    workers, cores = facts.workers, facts.usable_cores
    if workers is None or not cores or fills_its_cores(facts) is not False:
        return False
    throttled = facts.series("host.cpu_throttled")
    if throttled is not None and throttled.mean >= THROTTLED:
        return False
    # In the judged steps the workers may use more than over all samples.
    is_own = (workers.cpu_cores or 0.0) >= OWN_CORES * cores
    return workers.time_ns("core") >= QUEUED_RATIO * workers.cpu_ns and not is_own


def no_use(facts: Facts) -> str | None:
    """Why more workers would make no more batches; ``None`` where they would, or it is not known."""
    return shortage(facts) or lock_held(facts) or ran_out(facts)


def lock_held(facts: Facts) -> str | None:
    """Why workers hold each other up, as the number that says so; ``None`` where they do not, or it is not known."""
    workers = facts.workers
    if workers is None or workers.locked_ratio is None or workers.locked_ratio < LOCKED:
        return None
    if workers.share("fetch") < BLOCKED:
        return None
    return f"a blocked worker waited for a lock {format_ratio(workers.locked_ratio)} of the times it was sampled"


def ran_out(facts: Facts) -> str | None:
    """Why more workers would have no data, as the number that says so; ``None`` where they would, or who knows."""
    workers = facts.workers
    if workers is None or workers.active is None or workers.active >= WITH_DATA * workers.count:
        return None
    left = format_count(round(workers.active, 1))
    return f"on average only {left} of {workers.count} workers still had data: their shards differ in length"


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
    """Return whether the run itself uses most of its host's cores, so that it waits for itself.

    Of several ranks on one host each waits for the others, so all of them count. ``None`` where one was not sampled.
    """
    own, cores = own_cores(facts), facts.usable_cores
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
