"""What a CUDA memory snapshot says of one device."""

import msgspec

from profilerkit.model.memory import MemoryGrowth
from profilerkit.model.oom import LiveBytes, LiveKind


class LiveAtPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks in use at the peak by the line of Python that asked for them; ``None`` where it is not known.

    ``kind`` is derived from the lines that called it, up to the innermost that tells.
    """

    line: str | None
    count: int
    bytes: int
    kind: LiveKind = "unseen"


class FailedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that the device had no memory for; ``None`` means not recorded.

    Attributes:
        requested_bytes: what was asked for.
        free_bytes: of the device.
        in_use_bytes: in blocks at that moment, derived.
        reserved_bytes: held by the allocator at that moment, derived.
        frames: lines of Python that asked for it, innermost first.
        is_of_loss: the loss over the classes, or the logits before it, asked for it, by the names of its lines.
    """

    requested_bytes: int
    free_bytes: int | None = None
    in_use_bytes: int | None = None
    reserved_bytes: int | None = None
    frames: tuple[str, ...] = ()
    is_of_loss: bool = False

    @property
    def room_bytes(self) -> int | None:
        """Return all that the process could have had at that moment: what it held and what was free on the device."""
        if self.free_bytes is None or self.reserved_bytes is None:
            return None
        return self.free_bytes + self.reserved_bytes


class MemorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a snapshot of torch's caching allocator; ``None`` means not recorded.

    Sizes in use are those that were asked for; the allocator rounds them up.

    Attributes:
        origin: name of the file.
        device: its number in the process.
        in_use_bytes: in blocks when the snapshot was taken.
        reserved_bytes: held by the allocator then.
        idle_bytes: of those in no block in use.
        split_bytes: of the idle ones in segments that hold blocks in use as well, which cannot be given back.
        events: of the history.
        start_in_use_bytes: in use when the history begins: it does not tell who asked for that.
        peak_bytes: the most in use in the history; a lower bound of the run's peak unless the history begins empty.
        reserved_at_peak_bytes: held by the allocator then.
        peak_reserved_bytes: the most held in the history.
        length_ns: from the first to the last event.
        live: in use at the peak, without a history at the snapshot; largest first, at most ten lines.
        failed: requests that failed, in their order.
        kinds: what ``live`` is, with all lines of each kind together, largest first; ``unseen`` has no line.
        loss: of what was live, what the loss over the classes or the logits before it asked for, by its largest line.
        largest_free_bytes: the largest free block when the snapshot was taken; a larger request needs new memory.
        growth: of what is in use at the lowest moment between one rise and the next, which marks a step; ``None``
            with fewer than eight such moments, or without times.
        retaken: pieces of memory that were taken from the device after some had been given back to it, in the history.
    """

    origin: str
    device: int
    in_use_bytes: int
    reserved_bytes: int
    idle_bytes: int
    split_bytes: int
    events: int
    start_in_use_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_at_peak_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    length_ns: int | None = None
    live: tuple[LiveAtPeak, ...] = ()
    failed: tuple[FailedRequest, ...] = ()
    kinds: tuple[LiveBytes, ...] = ()
    loss: LiveAtPeak | None = None
    largest_free_bytes: int | None = None
    growth: MemoryGrowth | None = None
    retaken: int | None = None

    def held(self, *kinds: LiveKind) -> int:
        """Bytes of these kinds in use at the peak."""
        return sum(entry.bytes for entry in self.kinds if entry.kind in kinds)

    @property
    def is_lower_bound(self) -> bool:
        """Return whether more may have been in use before the history begins."""
        return self.start_in_use_bytes is None or self.start_in_use_bytes > 0

    @property
    def split_ratio(self) -> float | None:
        """Share of the reserved memory that was idle between blocks in use at the snapshot; ``None`` without any."""
        return self.split_bytes / self.reserved_bytes if self.reserved_bytes else None

    @property
    def idle_ratio(self) -> float | None:
        """Share of the reserved memory that was in no block at the peak, else at the snapshot; ``None`` without any."""
        if self.peak_bytes is not None and self.reserved_at_peak_bytes:
            return max(1.0 - self.peak_bytes / self.reserved_at_peak_bytes, 0.0)
        return self.idle_bytes / self.reserved_bytes if self.reserved_bytes else None
