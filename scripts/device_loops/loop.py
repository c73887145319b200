"""What a loop does in a step, as a list of actions. Times are ms of the host or of the device, and say which."""

from dataclasses import dataclass, field

Action = object


@dataclass(frozen=True)
class Fetch:
    """Get a batch. Without workers the host makes it, for ``make_ms``; with them it waits until one has.

    Attributes:
        slow_every: every so many batches take ``slow_ms`` to make; 0 for none.
        prefetch: batches that each worker may be ahead.
        paired: workers have their batches ready at the same moment, so that one wait in so many is long.
    """

    make_ms: float = 0.05
    workers: int = 0
    prefetch: int = 2
    slow_every: int = 0
    slow_ms: float = 0.0
    paired: bool = False


@dataclass(frozen=True)
class Python:
    """Python of the user's, on the host."""

    ms: float


@dataclass(frozen=True)
class Pass:
    """Kernels, launched one by one: forward, backward or optimizer.

    Attributes:
        device_ms: all of the kernels, one after the other.
        host_ms: what the host takes to issue all of them.
        name: of the optimizer, where there are several.
    """

    kind: str
    kernels: int
    device_ms: float
    host_ms: float
    name: str = "AdamW"


@dataclass(frozen=True)
class Replay:
    """A graph of ``kernels``, launched by one call; ``whole`` has backward and optimizer in it, which no hook sees."""

    kernels: int
    device_ms: float
    host_ms: float = 0.03


@dataclass(frozen=True)
class Item:
    """Read a value back, which waits for the stream."""


@dataclass(frozen=True)
class Synchronize:
    """``torch.cuda.synchronize()``."""


@dataclass(frozen=True)
class Copy:
    """Copy a batch to the device; on a stream of its own the next kernels do not wait before they need it."""

    device_ms: float
    pinned: bool = True
    own_stream: bool = False


@dataclass(frozen=True)
class Collective:
    """A collective of all ranks on the stream of communication, issued after what was computed so far.

    ``exposed`` has the next kernels wait for it at once, else they wait at ``Join``. ``called`` is the function of
    ``torch.distributed`` where Python calls it; DDP's are called from C++ and leave no record in the light tier.
    """

    ms: float
    name: str = "allreduce"
    called: str = ""
    exposed: bool = False


@dataclass(frozen=True)
class Join:
    """The compute stream waits for the collectives so far."""


@dataclass(frozen=True)
class Phase:
    """A named phase around other actions."""

    name: str
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class Save:
    """``torch.save``: the tensors are read back, which waits for the device, then written."""

    ms: float


@dataclass(frozen=True)
class Collect:
    """A pause of Python's garbage collector."""

    ms: float


@dataclass(frozen=True)
class Retry:
    """The allocator gives its cache back, which waits for the device, and asks again."""

    ms: float


@dataclass(frozen=True)
class Compile:
    """``torch.compile`` compiles."""

    ms: float


@dataclass(frozen=True)
class Every:
    """Actions in every ``steps``-th step, the last of so many."""

    steps: int
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class Before:
    """Actions in the steps before step ``step`` alone."""

    step: int
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class OnRank:
    """Actions of one rank, and those of the others."""

    rank: int
    actions: tuple[Action, ...]
    others: tuple[Action, ...] = ()


@dataclass(frozen=True)
class Chip:
    """What the device is held down by, from step ``from_step`` on, and what NVML says of it.

    Attributes:
        slow_ratio: how much longer kernels take.
        rank: the only rank concerned; ``None`` for all.
        neighbours: other processes in NVML's list; ``None`` where it does not tell, as in a container.
    """

    slow_ratio: float = 1.0
    from_step: int = 0
    rank: int | None = None
    clock_mhz: int = 1980
    reasons: int = 0
    power_throttle_ratio: float = 0.0
    thermal_throttle_ratio: float = 0.0
    power_limit_mw: int = 700_000
    neighbours: int | None = 0


@dataclass(frozen=True)
class Loop:
    """A run.

    Attributes:
        step: the actions of one step.
        steps: how many.
        device_jitter: relative spread of kernels.
        found_by: what marks the steps: ``wrapped loader``, ``step()`` or ``optimizer step``.
        cupti: how much the profiler sees of the device: ``kernels``, only the ``calls`` on the host, or ``nothing``.
        annotated: Kineto repeats annotations on the rows of the device.
    """

    step: tuple[Action, ...]
    steps: int = 240
    ranks: int = 1
    device_jitter: float = 0.003
    found_by: str = "wrapped loader"
    chip: Chip = field(default_factory=Chip)
    cupti: str = "kernels"
    annotated: bool = False


def train(
    device_ms: float = 20.0, host_ms: float = 2.0, kernels: int = 10, *, reduced: bool = False
) -> tuple[Action, ...]:
    """Forward, backward and optimizer of one step; ``reduced`` averages the gradients of all ranks behind backward."""
    forward, update = max(round(0.3 * kernels), 1), 1
    backward = kernels - forward - update
    each_host, device = host_ms / kernels, device_ms / 10
    passes = (
        Pass("forward", forward, 3.0 * device, forward * each_host),
        Pass("backward", backward, 6.7 * device, backward * each_host),
        Pass("optimizer", update, 0.3 * device, update * each_host),
    )
    if not reduced:
        return passes
    half = Pass("backward", backward // 2, 3.35 * device, backward // 2 * each_host)
    rest = Pass("backward", backward - backward // 2, 3.35 * device, (backward - backward // 2) * each_host)
    return passes[0], half, Collective(0.1 * device_ms), rest, Collective(0.02 * device_ms), Join(), passes[2]
