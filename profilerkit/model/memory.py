"""What the memory did: peaks, growth, what was alive; what was held at the end of it; what a snapshot says."""

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
        grows: the growth is significant and persistent. Where it is not, nothing may be claimed from the slope.
        headroom_bytes: capacity minus the largest memory seen, at least 0; ``None`` when unknown.
        steps_to_full: headroom / slope, an estimate; ``None`` unless it grows over at least 50 steps and points, and
            the headroom is known.
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
        peak_reserved_bytes: largest sum of segments that the caching allocator held.
        place: where the allocated memory lies. On the host it counts from the beginning of the recording.
        fragmentation_ratio: share of the reserved memory that lies idle when most is allocated:
            1 - allocated / reserved at the peak of the allocated memory.
        allocator_retries: operators of the steady window in which memory was given back to the driver so that an
            allocation could succeed; derived from the order of the calls.
        peak_device_used_bytes: largest sampled use of the device, by all processes.
        peak_process_bytes: largest sampled resident memory of the process, outside trace windows.
        traced_process_bytes: by how much that memory rose in trace windows: at most so much is the recording's own;
            ``None`` where it is not known or little.
        kept_process_bytes: how much of it was still there after the windows; later samples hold it.
        alive_before_bytes: what was alive at the peak and allocated before the recording: parameters, optimizer state.
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


#: ``other`` are batches, activations and temporaries that Python holds; ``unseen`` is what no Python object holds:
#: saved for the backward pass, libraries, and on a host everything that is no tensor. A memory snapshot knows the lines
#: that asked: ``activations`` are of forward passes, ``gradients`` are all that the backward pass made, and ``unseen``
#: has no line.
LiveKind = Literal["parameters", "gradients", "optimizer state", "buffers", "activations", "other", "unseen"]


class LiveBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one kind, each storage counted once; ``count`` is ``None`` for what was not counted but derived."""

    kind: LiveKind
    bytes: int
    count: int | None = None


class LiveTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One storage, told by the first tensor found on it."""

    kind: LiveKind
    shape: tuple[int, ...]
    dtype: str
    bytes: int


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a rank at the moment it ran out of it. ``None`` means not known.

    Attributes:
        step: steps that were complete; the failure is in the next one. ``None`` where no step was recorded.
        complete: all objects were looked at in the time there was; otherwise there may be more tensors.
        free_bytes: that could still be had: on the device, or of the tightest limit on the host.
        allocated_bytes: in tensors, by torch's allocator; of a host, what the process holds.
        reserved_bytes: by torch's allocator, with what lies idle in it.
        fitting_batch_size: the largest batch that may have fitted, estimated: parameters, gradients, optimizer state
            and buffers stay, those not allocated yet included, and the rest shrinks with the batch. An upper bound:
            what the rest of the step takes for a while is left out. ``None`` also where the state that the optimizer
            will keep is not known, and where the forward pass had not made all activations.
        frames: lines of Python that asked for it, innermost first; empty where they were not recorded.
    """

    device: str
    message: str
    requested_bytes: int | None = None
    step: int | None = 0
    live: tuple[LiveBytes, ...] = ()
    largest: tuple[LiveTensor, ...] = ()
    complete: bool = True
    free_bytes: int | None = None
    total_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    limit: Literal["device", "host", "control group", "address space"] | None = None
    batch_size: int | None = None
    fitting_batch_size: int | None = None
    rank: int | None = None
    frames: tuple[str, ...] = ()


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
        split_bytes: of the idle ones in segments that hold blocks in use as well, which cannot be given back.
        start_in_use_bytes: in use when the history begins: it does not tell who asked for that.
        peak_bytes: the most in use in the history; a lower bound of the run's peak unless the history begins empty.
        live: in use at the peak, without a history at the snapshot; largest first, at most ten lines.
        kinds: what ``live`` is, with all lines of each kind together, largest first; ``unseen`` has no line.
        loss: of what was live, what the loss over the classes or the logits before it asked for, by its largest line.
        largest_free_bytes: the largest free block when the snapshot was taken; a larger request needs new memory.
        rises: rises and falls of what was in use, in the history; where ``growth`` is ``None`` though there are eight,
            they look like layers of one pass.
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
    rises: int | None = None
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
