"""How much of the memory the judged rank needs, and how that is told apart from what is only cached."""

import re

import msgspec

from profilerkit.model.run import Series
from profilerkit.rules.api import Evidence, Facts, MissingData, NotApplicable

_COMMA = re.compile(r",(?![^\[\]]*\])")
_INSTANTS, _ALLOCATOR, _NVML = "[memory] instants", "torch's allocator, sampled", "NVML, all processes"


class Room(msgspec.Struct, frozen=True):
    """The memory that holds what is allocated: the device's, or the host's of a run without one.

    Attributes:
        needed_bytes: the peak of what is in use; of a device of which only the driver was asked, and of a host, with
            what is cached and what other processes use.
        capacity_bytes: all there is.
        origin: where the peak comes from.
        is_own: whether the peak counts nothing but what the run has allocated.
    """

    needed_bytes: int
    capacity_bytes: int
    origin: str
    is_own: bool = False

    @property
    def ratio(self) -> float:
        """Needed / capacity."""
        return self.needed_bytes / self.capacity_bytes

    def evidence(self, facts: Facts, label: str = "Peak of the memory in use, of the capacity") -> Evidence:
        """Return the ratio as evidence."""
        return facts.evidence(label, self.ratio, "ratio", self.origin, n=None)


def room_of(facts: Facts) -> Room | None:
    """The memory of the device, or of the host of a run without one; ``None`` where a number of it is missing."""
    if facts.mode == "cpu":
        return _on_host(facts)
    memory, allocator = facts.memory, facts.memory_use.allocator
    if not memory.capacity_bytes:
        return None
    by_instants = memory.peak_allocated_bytes if memory.place == "device" else None
    sampled = allocator.allocated_bytes if allocator else None
    for peak, origin in ((by_instants, _INSTANTS), (sampled, _ALLOCATOR), (memory.peak_device_used_bytes, _NVML)):
        if peak is not None:
            return Room(peak, memory.capacity_bytes, origin, is_own=origin is not _NVML)
    return None


def _on_host(facts: Facts) -> Room | None:
    """Return the host's memory, or that of the control group where it is fuller."""
    pairs = (
        (facts.series("host.memory_used"), facts.memory.host_capacity_bytes, "/proc/meminfo", False),
        (
            facts.series("host.cgroup_memory"),
            _smallest(facts.series("host.cgroup_memory_limit")),
            "control group",
            True,
        ),
    )
    known = [
        Room(round(used.maximum), total, origin, is_own)
        for used, total, origin, is_own in pairs
        if used is not None and total
    ]
    return max(known, key=lambda room: room.ratio, default=None)


def _smallest(series: Series | None) -> int | None:
    return None if series is None else round(series.p10)


def no_allocator(facts: Facts) -> NotApplicable | MissingData:
    """Return how a rule about torch's allocator ends where nothing is known of it."""
    if facts.mode == "cpu":
        return NotApplicable("no device: there is no caching allocator")
    return MissingData(
        "the allocator's memory was not recorded", "profilerkit.profile(...), or torch.profiler: profile_memory=True"
    )


def grows_segments(facts: Facts) -> bool:
    """Return whether the environment asks for segments that grow."""
    return "expandable_segments:true" in (facts.memory_use.allocator_settings or "").lower()


def with_setting(facts: Facts, setting: str) -> str:
    """Return the variable to set, with ``setting`` beside what stands in it now."""
    kept = without_setting(facts, setting.partition(":")[0])
    return f"PYTORCH_ALLOC_CONF={','.join([*kept, setting])}"


def without_setting(facts: Facts, name: str) -> list[str]:
    """What the environment asks of the allocator beside the setting ``name``; commas in brackets separate nothing."""
    entries = [entry.strip() for entry in _COMMA.split(facts.memory_use.allocator_settings or "")]
    return [entry for entry in entries if entry and entry.partition(":")[0].strip() != name]
