"""The records of what is sampled once per second: the lines of ``samples.jsonl``, and the device they are of.

Of a device a field that is ``None`` is not written: what a machine cannot say costs nothing on its disk.
"""

from typing import Annotated, Literal

import msgspec

#: ns of either clock, within 73 years of its zero: a few of them add up to less than 2^63.
TimeNs = Annotated[int, msgspec.Meta(ge=-(1 << 61), le=1 << 61)]
#: Bytes of a memory: no host has 2^60, and differences of a few fit into 2^63.
SizeBytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class StartUp(msgspec.Struct, frozen=True, kw_only=True):
    """What a program under ``profilerkit run`` did before its recording; instants by ``perf_counter_ns``."""

    python_end_ns: TimeNs
    imports: tuple[tuple[TimeNs, TimeNs], ...] = ()
    packages: dict[str, TimeNs] = {}
    model: tuple[TimeNs, TimeNs] | None = None
    loader_ns: TimeNs | None = None
    device: tuple[TimeNs, TimeNs] | None = None
    own: tuple[TimeNs, TimeNs] | None = None


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What does not change of the device in a run; ``None`` means unsupported or failed.

    ``gpm`` is why there are no GPM metrics. An idle link may be slower than ``pcie_generation_max``. ``power_limit_mw``
    is enforced, and ``power_limit_default_mw`` what the device boots with.
    """

    found_by: str
    driver_version: str | None = None
    name: str | None = None
    uuid: str | None = None
    gpm: str = ""
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    power_limit_mw: int | None = None
    power_limit_default_mw: int | None = None
    sm_clock_max_mhz: int | None = None


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading of one device; ``None`` means unsupported, failed, or not asked this time.

    Ratios of throttling and rates are over the time since the sample before, from the driver's own counters. Under MIG
    memory and processes are the instance's, power, clocks, temperature and throttling the whole device's.
    """

    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    memory_used_bytes: SizeBytes | None = None
    memory_total_bytes: SizeBytes | None = None
    #: The driver's average of one second on Ampere and newer, but for GA100, the chip of the A100: there and on older
    #: devices it is that of the moment (NVML, ``nvmlDeviceGetPowerUsage``).
    power_mw: int | None = None
    power_instant_mw: int | None = None
    #: Asked once a minute, as are ``sm_clock_max_mhz``, memory errors and other processes.
    power_limit_mw: int | None = None
    energy_mj: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    throttle_reasons: int | None = None
    power_throttle_ratio: float | None = None
    sw_thermal_throttle_ratio: float | None = None
    hw_thermal_throttle_ratio: float | None = None
    pcie_tx_bytes_per_s: int | None = None
    pcie_rx_bytes_per_s: int | None = None
    nvlink_tx_bytes_per_s: int | None = None
    nvlink_rx_bytes_per_s: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    #: Processes on the device that are not this one; ``other_pids`` are the numbers of at most 64.
    other_processes: int | None = None
    other_processes_bytes: SizeBytes | None = None
    #: GPM: multiprocessors with at least one warp, and so on for ``sm_occupancy`` (warps of the possible ones),
    #: ``tensor_active``, ``fp32_active`` and ``dram_active`` (bandwidth of the possible one).
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    fp32_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    is_lost: bool | None = None  #: the device stopped answering; nothing is read of it from here on
    other_pids: tuple[int, ...] = ()


class WorkerSample(msgspec.Struct, frozen=True, array_like=True):
    """One worker process: ``cpu_cores`` since the sample before, ``None`` when it is new."""

    pid: int
    cpu_cores: float | None
    rss_bytes: SizeBytes


class WorkerPages(msgspec.Struct, frozen=True, array_like=True):
    """Memory of one worker process that no file stands behind, and how much of it is the worker's alone."""

    pid: int
    anonymous_bytes: SizeBytes
    private_bytes: SizeBytes


class HostSample(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One reading of the host and of this process; ``None`` means unsupported or failed.

    Written as a list in the order of its fields, at whose end new ones go: most are known everywhere, and their names
    would be two thirds of what a run with 50 ms steps writes beside its steps. Rates are over the time since the sample
    before.
    """

    cpu_ratio: float | None = None
    iowait_ratio: float | None = None
    steal_ratio: float | None = None  #: time in which another guest of the same machine ran instead
    #: Threads of the machine that run or wait for a processor, the sampler's own included.
    running_tasks: int | None = None
    process_cpu_cores: float | None = None
    thread_queue_ratio: float | None = None
    thread_preemptions_per_s: float | None = None
    memory_used_bytes: SizeBytes | None = None
    memory_total_bytes: SizeBytes | None = None
    swap_used_bytes: int | None = None
    process_rss_bytes: SizeBytes | None = None
    process_major_faults_per_s: float | None = None
    read_bytes: int | None = None  #: by this process from storage, since its start; ``write_bytes`` likewise
    write_bytes: int | None = None
    cpu_pressure_ratio: float | None = None  #: time in which some task of the machine waited for a processor (PSI)
    io_pressure_ratio: float | None = None
    memory_pressure_ratio: float | None = None
    cgroup_cpu_cores: float | None = None  #: used by the group of processes whose quota is the tightest around this one
    cgroup_cpu_pressure_ratio: float | None = None
    cgroup_memory_pressure_ratio: float | None = None
    cpu_throttled_ratio: float | None = None
    #: Of the group whose limit is the tightest around this process, its file cache included.
    cgroup_memory_bytes: int | None = None
    cgroup_memory_max_bytes: int | None = None
    cgroup_oom_kills: int | None = None
    disk_read_bytes_per_s: int | None = None
    disk_write_bytes_per_s: int | None = None
    disk_busy_ratio: float | None = None
    net_rx_bytes_per_s: int | None = None
    net_tx_bytes_per_s: int | None = None
    workers: tuple[WorkerSample, ...] = ()
    #: Pages that the training thread touched for the first time since they were given to it.
    thread_faults_per_s: float | None = None
    #: Time of the training thread in the kernel, and ``thread_cpu_ratio`` on a processor at all.
    thread_system_ratio: float | None = None
    thread_cpu_ratio: float | None = None
    #: Of ``process_rss_bytes``, pages of files, which the kernel takes back when it needs them.
    process_file_bytes: SizeBytes | None = None
    worker_pages: WorkerPages | None = None
    pool_queue_ratio: float | None = None

    @property
    def process_own_bytes(self) -> int | None:
        """Return the resident memory of the process without pages of files; ``None`` where one was not sampled."""
        if self.process_rss_bytes is None or self.process_file_bytes is None:
            return None
        return self.process_rss_bytes - self.process_file_bytes


class AllocatorSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What torch's CUDA allocator says of one device; ``None`` where this torch does not say.

    ``requested_bytes`` is what was asked for of ``allocated_bytes``, before the allocator rounded it up.
    Peaks are since the start or since the user reset them; ``alloc_retries`` and ``ooms`` count since the start.
    """

    allocated_bytes: SizeBytes | None = None
    allocated_peak_bytes: SizeBytes | None = None
    reserved_bytes: SizeBytes | None = None
    reserved_peak_bytes: SizeBytes | None = None
    active_bytes: SizeBytes | None = None
    inactive_split_bytes: SizeBytes | None = None
    alloc_retries: int | None = None
    ooms: int | None = None
    requested_bytes: int | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``samples.jsonl``; ``t_ns`` is ``perf_counter_ns``."""

    t_ns: TimeNs
    gpu: GpuSample | None = None
    host: HostSample | None = None
    allocator: AllocatorSample | None = None


#: Where a thread was found: in the loader, in a worker's collate function, in a backward pass or in a hook that one
#: calls, in the optimizer, writing a checkpoint, or anywhere else.
StackPlace = Literal["input", "collate", "backward", "hook", "forward_hook", "optimizer", "save", "step"]


class StackSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """One line of ``stacks.jsonl``, an array, as there are many: where a thread was at a moment."""

    t_ns: TimeNs
    place: StackPlace = "step"
    held_ns: TimeNs = 0  #: how long the thread had kept the interpreter until it could be looked at
    queued_ns: TimeNs = 0  #: how long the look had waited for a processor before that
    #: ``file.py(12): function`` of the user's frames in that place, outer first; else of a library, or torch.
    lines: tuple[str, ...] = ()
    in_torch: bool = False  #: the last of them had called torch's own Python; in the loader, they are torch's
    waits: bool = False  #: it slept, and not for the interpreter, as far as that is known
