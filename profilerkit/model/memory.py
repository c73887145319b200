"""What a run's memory did: peaks, what was alive at the peak, growth, and the peak of every step."""

from typing import Literal

import msgspec

#: Growth over fewer steps is an observation: sequences that get longer look the same. Over fewer
#: points it is not carried forward.
FEWEST_TO_EXTEND = 50

#: What a number of bytes counts: blocks in use by PyTorch's allocator; all that is used on the device, by every
#: process; the resident memory of the training process, without pages of files where growth is judged; that of one of
#: its loader's workers.
Tracked = Literal["allocated", "device", "process", "worker"]

#: Which memory a peak is of. What the allocator reserved or gave out on the device and what was sampled there come
#: before the process; what a trace saw allocated on the host counts only from where the recording began.
PeakOf = Literal["reserved", "allocated", "all processes", "of the process", "allocated on the host while recording"]


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The largest memory that is known, which memory that is, and how large it could be; ``None`` if not known."""

    bytes: int
    of: PeakOf
    capacity_bytes: int | None


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """The largest memory seen in one step; ``reserved_bytes`` is ``None`` where only one number is known."""

    index: int
    peak_bytes: int
    reserved_bytes: int | None = None


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Growth from step to step: a Theil-Sen slope with its 99 % interval.

    Attributes:
        of: what grows; ``allocated`` is judged by the least of each step, which is what steps leave behind.
        bytes_per_step: the slope.
        low_bytes_per_step: lower end of its interval.
        high_bytes_per_step: upper end of its interval.
        n: points it rests on.
        first_step: first step judged.
        last_step: last step judged.
        grows: the growth is significant and persistent. Where it is not, nothing may be claimed from the slope.
        headroom_bytes: capacity minus the largest memory seen, at least 0; ``None`` when unknown.
        steps_to_full: headroom / slope, an estimate; ``None`` unless it grows over at least 50 steps and points, and
            the headroom is known.
        ns_to_full: the same as time at the mean steady step.
    """

    of: Tracked
    bytes_per_step: float
    low_bytes_per_step: float
    high_bytes_per_step: float
    n: int
    first_step: int
    last_step: int
    grows: bool
    headroom_bytes: int | None = None
    steps_to_full: float | None = None
    ns_to_full: int | None = None

    @property
    def steps(self) -> int:
        """Return how many steps were judged, the first and the last among them."""
        return self.last_step - self.first_step + 1

    @property
    def lasts(self) -> bool:
        """Return whether it grows over enough steps to be no matter of single batches."""
        return self.grows and self.steps >= FEWEST_TO_EXTEND

    @property
    def total_bytes(self) -> float:
        """Growth over the steps judged."""
        return self.bytes_per_step * (self.last_step - self.first_step)


class AliveAtPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks alive at the peak, by the operator that asked for them; ``None`` where no operator or module is known."""

    op: str | None
    module: str | None
    count: int
    bytes: int


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the judged rank; ``None`` means not measured.

    Attributes:
        peak_allocated_bytes: largest sum of blocks in use in the steady window.
        peak_reserved_bytes: largest sum of segments that the caching allocator held.
        capacity_bytes: of the device.
        allocator_calls_per_step: calls to the driver's allocator.
        place: where the allocated memory lies. On the host it counts from the beginning of the recording.
        fragmentation_ratio: share of the reserved memory that lies idle when most is allocated:
            1 - allocated / reserved at the peak of the allocated memory.
        allocator_frees_per_step: calls that give device memory back to the driver.
        allocator_retries: operators of the steady window in which memory was given back to the driver so that an
            allocation could succeed; derived from the order of the calls.
        peak_device_used_bytes: largest sampled use of the device, by all processes.
        peak_process_bytes: largest sampled resident memory of the process, outside trace windows.
        traced_process_bytes: by how much that memory rose in trace windows: at most so much is the recording's own;
            ``None`` where it is not known or little.
        kept_process_bytes: how much of it was still there after the windows; later samples hold it.
        host_capacity_bytes: of the host.
        alive: what was alive at the peak, largest first, at most 20 entries.
        alive_before_bytes: what was alive at the peak and allocated before the recording: parameters, optimizer state.
        growth: one entry per memory that could be judged; that of the process is less what trace windows kept.
        rows: the largest memory of each step, thinned like the steps; ``rows_of`` says which memory.
    """

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    capacity_bytes: int | None = None
    allocator_calls_per_step: float | None = None
    place: Literal["device", "host"] = "device"
    fragmentation_ratio: float | None = None
    allocator_frees_per_step: float | None = None
    allocator_retries: int | None = None
    peak_device_used_bytes: int | None = None
    peak_process_bytes: int | None = None
    traced_process_bytes: int | None = None
    kept_process_bytes: int | None = None
    host_capacity_bytes: int | None = None
    alive: tuple[AliveAtPeak, ...] = ()
    alive_before_bytes: int | None = None
    growth: tuple[MemoryGrowth, ...] = ()
    rows: tuple[MemoryRow, ...] = ()
    rows_of: Tracked | None = None

    @property
    def peak(self) -> Peak | None:
        """Return the peak of the first memory of ``PeakOf`` that was measured; ``None`` where none was."""
        allocated, on_device = self.peak_allocated_bytes, self.place == "device"
        known: tuple[tuple[PeakOf, int | None, int | None], ...] = (
            ("reserved", self.peak_reserved_bytes, self.capacity_bytes),
            ("allocated", allocated if on_device else None, self.capacity_bytes),
            ("all processes", self.peak_device_used_bytes, self.capacity_bytes),
            ("of the process", self.peak_process_bytes, self.host_capacity_bytes),
            ("allocated on the host while recording", allocated, None),
        )
        found = (Peak(bytes=peak, of=of, capacity_bytes=capacity) for of, peak, capacity in known if peak is not None)
        return next(found, None)
