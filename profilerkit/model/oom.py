"""What the memory held when a rank ran out of it."""

from typing import Literal

import msgspec

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
        device: that had none left: ``cuda:0``, or ``host``.
        message: of the error, its first line.
        requested_bytes: the request that failed, which is the largest one known.
        step: steps that were complete; the failure is in the next one. ``None`` where no step was recorded.
        live: by kind, largest first; measured, but for ``unseen``, which is what the process or the allocator holds
            beside the tensors that were found.
        largest: the largest of the tensors, at most ten.
        complete: all objects were looked at in the time there was; otherwise there may be more tensors.
        free_bytes: that could still be had: on the device, or of the tightest limit on the host.
        total_bytes: of the device, or that limit.
        allocated_bytes: in tensors, by torch's allocator; of a host, what the process holds.
        reserved_bytes: by torch's allocator, with what lies idle in it.
        limit: what bounds the memory: ``device``, ``host``, ``control group`` or ``address space``.
        batch_size: of the training loader.
        fitting_batch_size: the largest batch that may have fitted, estimated: parameters, gradients, optimizer state
            and buffers stay, those not allocated yet included, and the rest shrinks with the batch. An upper bound:
            the step had not made all activations, and what an optimizer takes for the length of its step is left out.
            ``None`` also where the state that the optimizer will keep is not known.
        rank: that it is about; ``None`` in the rank's own file.
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
