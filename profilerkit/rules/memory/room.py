"""How much of the memory the judged rank needs, and how that is told apart from what is only cached."""

import re

import msgspec

from profilerkit.rules.api import Evidence, Facts, Fix, SettingChange

_COMMA = re.compile(r",(?![^\[\]]*\])")  #: commas in brackets separate nothing
#: Of the environment, with the settings of torch's allocator.
_VARIABLE = "PYTORCH_ALLOC_CONF"
_INSTANTS, _ALLOCATOR, _NVML = "[memory] instants", "torch's allocator, sampled", "NVML, all processes"


class Room(msgspec.Struct, frozen=True):
    """The device's memory."""

    #: The peak of what is in use; where only the driver was asked, with what is cached and what other processes use.
    needed_bytes: int
    capacity_bytes: int
    origin: str
    is_own: bool = False  #: whether the peak counts nothing but what the run has allocated

    @property
    def ratio(self) -> float:
        """Needed / capacity."""
        return self.needed_bytes / self.capacity_bytes

    def evidence(self, facts: Facts) -> Evidence:
        """Return the ratio as evidence."""
        return facts.evidence("Peak of the memory in use, of the capacity", self.ratio, "ratio", self.origin, n=None)


def room_of(facts: Facts) -> Room | None:
    """Return the memory of the device; ``None`` without one, or where a number of it is missing."""
    memory, allocator = facts.memory, facts.memory_use.allocator
    if facts.mode == "cpu" or not memory.capacity_bytes:
        return None
    by_instants = memory.peak_allocated_bytes if memory.place == "device" else None
    sampled = allocator.allocated_bytes if allocator else None
    for peak, origin in ((by_instants, _INSTANTS), (sampled, _ALLOCATOR), (memory.peak_device_used_bytes, _NVML)):
        if peak is not None:
            return Room(peak, memory.capacity_bytes, origin, is_own=origin is not _NVML)
    return None


def grows_segments(facts: Facts) -> bool:
    """Return whether the environment asks for segments that grow."""
    return "expandable_segments:true" in (facts.memory_use.allocator_settings or "").lower()


def with_setting(facts: Facts, text: str, setting: str) -> Fix:
    """Return the fix of a ``setting`` of the allocator, beside what stands in its variable now."""
    now = facts.memory_use.allocator_settings or ""
    entries = [entry.strip() for entry in _COMMA.split(now)]
    name = setting.partition(":")[0]
    kept = [entry for entry in entries if entry and entry.partition(":")[0].strip() != name]
    value = ",".join([*kept, setting])
    change = SettingChange(f"env:{_VARIABLE}", now, value)
    return Fix(text=text, code=f"{_VARIABLE}={value}", changes=(change,))
