"""What a CUDA memory snapshot says of one device."""

import msgspec


class LiveAtPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks in use at the peak by the line of Python that asked for them; ``None`` where it is not known."""

    line: str | None
    count: int
    bytes: int


class FailedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that the device had no memory for; ``None`` means not recorded.

    Attributes:
        requested_bytes: what was asked for.
        free_bytes: of the device.
        in_use_bytes: in blocks at that moment, derived.
        reserved_bytes: held by the allocator at that moment, derived.
        frames: lines of Python that asked for it, innermost first.
    """

    requested_bytes: int
    free_bytes: int | None = None
    in_use_bytes: int | None = None
    reserved_bytes: int | None = None
    frames: tuple[str, ...] = ()


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

    @property
    def is_lower_bound(self) -> bool:
        """Whether more may have been in use before the history begins."""
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
