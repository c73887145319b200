"""What a job does at the moment: its last steps, its latest samples, who is late. ``None`` means not measured."""

from typing import Literal

import msgspec

#: Why a rank is told: its timers, fewer steps than the others, or an end before theirs.
LateKind = Literal["timers", "behind", "ended", "killed"]


class LiveDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The latest reading of a rank's device; fields are those of ``rundir.sampled.GpuSample``."""

    utilization_ratio: float | None = None
    power_mw: float | None = None
    power_limit_mw: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    temperature_c: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None


class LiveHost(msgspec.Struct, frozen=True, kw_only=True):
    """The latest reading of a rank's host; fields are those of ``rundir.sampled.HostSample``."""

    cpu_ratio: float | None = None
    running_tasks: float | None = None
    thread_queue_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    process_rss_bytes: float | None = None


class LiveRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank now.

    Attributes:
        host: name of its host; empty where it is not known. Hostile text.
        wait_ns: mean wait for data of a recent step; ``None`` where no fetch was seen.
        device: ``None`` without a sample of the last seconds; ``no_device`` says why there is none.
        hosted: of its host, likewise, and ``no_host``.
    """

    rank: int
    host: str = ""
    steps: int = 0
    wait_ns: int | None = None
    wait_ratio: float | None = None
    device: LiveDevice | None = None
    no_device: str = ""
    hosted: LiveHost | None = None
    no_host: str = ""


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """The last steps of one rank.

    Attributes:
        median_ns: of those that are no warm-up and were not traced.
        p10_ns: of the same; ``None`` for a single one, as is ``p90_ns``.
        trend: medians of groups of equally many steps, the oldest first.
    """

    rank: int
    steps: int
    rate_per_s: float | None
    median_ns: int
    p10_ns: int | None
    p90_ns: int | None
    trend: tuple[int, ...]
    trend_steps: int


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that stands out: by how much more a step its timers measured, or how many steps it lacks or made."""

    rank: int
    kind: LateKind
    excess_ns: int | None = None
    steps: int | None = None


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """A job now.

    Attributes:
        world_size: ranks of the job; ``None`` while rank 0 has not told.
        running_ns: from the start of the first rank's recording until now, or until its end.
        quiet_ns: since the last step of any rank ended; ``None`` before the first one, and after the end.
        window: first and last step of the latest trace that can be read; ``None`` while there is none.
        silent_ns: since the last record of ranks that nobody here can ask whether they still run; ``None`` where one is
            known to run, or all are known to be over.
        verdict_age_ns: since the verdict was made; ``None`` where it is of this moment, or there is none.
    """

    world_size: int | None
    ranks: tuple[LiveRank, ...]
    running_ns: int | None
    quiet_ns: int | None
    recent: Recent | None
    late: tuple[Late, ...]
    window: tuple[int, int] | None
    is_over: bool
    silent_ns: int | None = None
    verdict_age_ns: int | None = None

    @property
    def steps(self) -> int:
        """Steps that the rank with the most of them has finished."""
        return max((rank.steps for rank in self.ranks), default=0)
