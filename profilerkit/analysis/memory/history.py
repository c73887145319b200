"""An allocator's history to its peak, what was in use at it and for what, and when a sampled device is idle."""

import re
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from profilerkit.analysis.memory.allocator import told_growth
from profilerkit.analysis.steps.series import regular_distance
from profilerkit.model import revise
from profilerkit.model.memory import FailedRequest, LiveAtPeak, LiveBytes, LiveKind, MemorySnapshot
from profilerkit.model.run import Series
from profilerkit.rundir.sampled import Sample
from profilerkit.trace.columns import I64
from profilerkit.trace.logs import BACKWARD, AllocatorEvent, Block, DeviceHistory, SnapshotLog

#: A fall of this part of the deepest one ends a rise: freed temporaries within a forward pass are smaller (a choice).
DEEP_FALL = 0.5
_MOST_RISES = 0.5  #: rises are steps where more of them than this are whole ones (a choice: most)


def valleys(level: I64) -> I64:
    """Positions of the lowest value between one rise and the next; each at least ``DEEP_FALL`` of the deepest fall.

    >>> valleys(np.array([0, 9, 8, 9, 1, 9, 2, 9])).tolist()
    [4, 6]
    """
    deep = DEEP_FALL * float((np.maximum.accumulate(level) - level).max(initial=0))
    found: list[int] = []
    if deep <= 0:
        return np.array(found, dtype=np.int64)
    high, low, falling = int(level[0]), 0, False
    for place, value in enumerate(level.tolist()):
        if falling:
            low = place if value < level[low] else low
            if value - level[low] >= deep:
                found.append(low)
                falling, high = False, value
        else:
            high = max(high, value)
            if high - value >= deep:
                falling, low = True, place
    return np.array(found, dtype=np.int64)


#: torch's own places in which modules get their parameters and are moved; and in which they run.
_MODULES = re.compile(r"torch[/\\]nn[/\\]modules[/\\]\w+\.py$")
_MOVES = ("_apply", "convert", "to", "cuda", "reset_parameters", "__init__")
_LOADS = ("from_pretrained", "load_state_dict", "reset_parameters")
_RUNS = ("forward", "_call_impl", "_wrapped_call_impl")
_FUNCTIONAL = re.compile(r"torch[/\\]nn[/\\]functional\.py$")
#: Names that code gives to the loss over the classes of every position, and to the scores before it: torch's own, those
#: of Hugging Face Transformers, Megatron and nanoGPT, and the nodes of its backward pass.
_LOSS = re.compile(r"cross_?entropy|log_?softmax|nll_?loss|CausalLMLoss|lm_head|(?:^|_)logits(?:_|$)", re.IGNORECASE)


def split_frame(frame: str) -> tuple[str, str]:
    """File and function of an entry of a stack; of the backward pass no file, and the name of its node.

    >>> split_frame("/job/model.py:12 forward"), split_frame("backward MmBackward0")
    (('/job/model.py', 'forward'), ('', 'MmBackward0'))
    """
    file, _, rest = frame.rpartition(":")
    line, _, function = rest.partition(" ")
    return (file, function) if file and line.isdigit() else ("", frame.removeprefix(BACKWARD).strip())


def kind_of(frames: Sequence[str], modules: frozenset[str]) -> LiveKind:
    """What the innermost line says that says anything: a forward pass within the backward pass makes activations.

    >>> kind_of(("/job/model.py:12 forward", "backward CheckpointBackward"), frozenset())
    'activations'
    >>> kind_of(("/torch/optim/adam.py:180 _init_group",), frozenset()), kind_of((), frozenset())
    ('optimizer state', 'unseen')
    """
    for frame in frames:
        file, function = split_frame(frame)
        if frame.startswith(BACKWARD) or function == "backward":
            return "gradients"
        # torch/optim/adam.py, distrib_optimizer.py, my_optim.py
        *folders, name = file.lower().replace("\\", "/").split("/")
        if any("optim" in folder for folder in folders) or ("optim" in name and name.endswith(".py")):
            return "optimizer state"
        is_module = _MODULES.search(file) is not None
        if function in _LOADS or (is_module and function in _MOVES) or (function == "__init__" and file in modules):
            return "parameters"
        if function == "forward" or (is_module and function in _RUNS) or _FUNCTIONAL.search(file):
            return "activations"
    return "other" if frames else "unseen"


def is_of_loss(frames: Sequence[str]) -> bool:
    """Whether the loss over the classes, or the scores before it, asked for the memory, by the names on the stack.

    >>> is_of_loss(("/torch/nn/functional.py:3104 cross_entropy", "/job/train.py:4 step"))
    True
    """
    return any(_LOSS.search(split_frame(frame)[1]) for frame in frames)


MOST_LINES, MOST_FAILED = 10, 10  #: lines of Python told of what was live, and requests that failed

_IN_USE = {"alloc": 1, "free_completed": -1}
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/", "<")  #: paths of code that is not the user's own

_Live = list[tuple[int, tuple[str, ...]]]

_LARGEST = 1 << 60  #: sizes of a damaged snapshot may add up to more than fits into 64 bits


def memory_snapshots(log: SnapshotLog) -> tuple[MemorySnapshot, ...]:
    """What a snapshot says of each of its devices."""
    return tuple(_snapshot(log.origin, device) for device in log.devices)


def _snapshot(origin: str, device: DeviceHistory) -> MemorySnapshot:
    blocks = [block for segment in device.segments for block in segment.blocks]
    used = [block for block in blocks if block.in_use]
    free = [block.bytes for block in blocks if not block.in_use]
    reserved = _total(segment.total_bytes for segment in device.segments)
    in_use = _total(block.bytes for block in used)
    touched = [segment for segment in device.segments if any(block.in_use for block in segment.blocks)]
    split = [block.bytes for segment in touched for block in segment.blocks if not block.in_use]
    known = MemorySnapshot(
        origin=origin,
        device=device.device,
        in_use_bytes=in_use,
        reserved_bytes=reserved,
        idle_bytes=max(reserved - in_use, 0),
        split_bytes=_total(split),
        largest_free_bytes=max(free, default=None),
        events=len(device.events),
    )
    known = _held(known, [(block.bytes, block.frames) for block in used], in_use)
    return _with_history(known, device.events, used) if device.events else known


def _level(events: Sequence[AllocatorEvent], signs: dict[str, int], end: int) -> tuple[int, I64]:
    """Bytes before the first event and ``(n_events,)`` after each, counted back from the snapshot's.

    Three events of +4, +2 and -4 that end with 5 bytes began with 3: 7, 9, 5. What would begin below zero begins at
    the least that stays above it: the history and the end then disagree.
    """
    change = np.array([signs.get(event.action, 0) * event.bytes for event in events], dtype=np.float64)
    grown = np.cumsum(change)
    start = max(end - float(grown[-1]), -float(min(grown.min(), 0.0)), 0.0)
    return round(min(start, _LARGEST)), np.rint(np.clip(start + grown, 0.0, _LARGEST)).astype(np.int64)


def _with_history(known: MemorySnapshot, events: Sequence[AllocatorEvent], used: Sequence[Block]) -> MemorySnapshot:
    start, in_use = _level(events, _IN_USE, known.in_use_bytes)
    start_reserved, reserved = _level(events, _RESERVED, known.reserved_bytes)
    top = int(in_use.argmax())
    peak = int(in_use[top])
    if start > peak:
        top, peak = -1, start
    timed = np.array([row for row, event in enumerate(events) if event.time_ns is not None], dtype=np.int64)
    times = np.array([events[row].time_ns for row in timed.tolist()], dtype=np.int64)
    failed = _failed(events, in_use, reserved)
    room = failed[-1].room_bytes if failed else None
    taken = [_RESERVED[event.action] > 0 for event in events if event.action in _RESERVED]
    # How the lowest memory in use grows from one rise to the next.
    low, growth = valleys(in_use[timed]), None
    if len(low) > 1 and _are_steps(events, timed[low]):
        each_ns = float(times[low[-1]] - times[low[0]]) / (len(low) - 1)
        left = max(room - peak, 0) if room is not None else None
        growth = told_growth("allocated", np.arange(len(low)), in_use[timed][low], left, each_ns)
    return revise(
        _held(known, _live_at(events, top, used), peak),
        start_in_use_bytes=start,
        peak_bytes=peak,
        reserved_at_peak_bytes=int(reserved[top]) if top >= 0 else start_reserved,
        peak_reserved_bytes=max(start_reserved, int(reserved.max())),
        length_ns=int(times.max() - times.min()) if len(times) else None,
        failed=failed,
        growth=growth,
        rises=len(low),
        retaken=sum(taken[taken.index(False) :]) if False in taken else 0,
    )


def _are_steps(events: Sequence[AllocatorEvent], rows: I64) -> bool:
    """Return whether most rises between ``rows`` hold a backward pass and what is none, or a forward pass and neither.

    Layers of one pass rise and fall too, and ask within it alone: in a loop without a backward pass, the loop asks
    too, for its batch. The threads of autograd have no Python stack, and of no stacks none is known.
    """
    if not any(event.frames for event in events):
        return True
    kind_by_stack = {frames: _pass_of(frames) for frames in {event.frames for event in events}}
    kinds = np.array([kind_by_stack[event.frames] if event.action == "alloc" else "" for event in events])
    is_known = ~np.isin(kinds, ("", "gradients"))
    asked = np.cumsum([is_known, kinds == "gradients", kinds == "activations", kinds == "other"], axis=1)
    known, backward, forward, beside = np.diff(asked[:, rows], axis=1) > 0
    return bool(((known & backward) | (forward & beside)).mean() > _MOST_RISES)


def _pass_of(frames: Sequence[str]) -> LiveKind:
    """``gradients`` for all within the backward pass, activations that it makes again included; else the kind."""
    is_backward = not frames or any(kind_of((frame,), frozenset()) == "gradients" for frame in frames)
    return "gradients" if is_backward else kind_of(frames, frozenset())


def _failed(events: Sequence[AllocatorEvent], in_use: I64, reserved: I64) -> tuple[FailedRequest, ...]:
    """The last requests that failed, in their order."""
    rows = [row for row, event in enumerate(events) if event.action == "oom"][-MOST_FAILED:]
    return tuple(
        FailedRequest(
            requested_bytes=events[row].bytes,
            free_bytes=events[row].free_bytes,
            in_use_bytes=int(in_use[row]),
            reserved_bytes=int(reserved[row]),
            frames=events[row].frames,
            is_of_loss=is_of_loss(events[row].frames),
        )
        for row in rows
    )


def _live_at(events: Sequence[AllocatorEvent], top: int, used: Sequence[Block]) -> _Live:
    """Size and stack of what was in use after event ``top``, as far as it is known who asked for it."""
    live: dict[int, tuple[int, tuple[str, ...]]] = {}
    asked = {event.address for event in events if event.action == "alloc"}
    freed = {event.address for event in events if event.action == "free_completed"}
    for event in events[: top + 1]:
        if event.action == "alloc":
            live[event.address] = (event.bytes, event.frames)
        elif event.action == "free_completed":
            live.pop(event.address, None)
    older = [block for block in used if block.address not in asked and block.address not in freed]
    return [*live.values(), *((block.bytes, block.frames) for block in older)]


def _held(known: MemorySnapshot, blocks: _Live, total: int) -> MemorySnapshot:
    """``known`` with what the blocks are, by line and by kind; what is not known of ``total`` has neither."""
    # An ``__init__`` in a file with a function ``forward`` makes parameters.
    lines = {frame for _, frames in blocks for frame in frames}
    modules = frozenset(split_frame(frame)[0] for frame in lines if frame.endswith(" forward"))
    kind_by_stack = {frames: kind_of(frames, modules) for frames in {frames for _, frames in blocks}}
    by_line = _by_line([(size, own_line(frames), kind_by_stack[frames]) for size, frames in blocks])
    kinds: dict[LiveKind, tuple[int, int]] = {}
    for row in by_line:
        count, size = kinds.get(row.kind, (0, 0))
        kinds[row.kind] = (count + row.count, size + row.bytes)
    count, size = kinds.get("unseen", (0, 0))
    unseen = max(total - sum(row.bytes for row in by_line), 0) + size
    if unseen:
        kinds["unseen"] = (count, unseen)
    told = [row for row in by_line if row.line is not None]
    shown = told[:MOST_LINES]
    rest = total - sum(row.bytes for row in shown)
    others = sum(row.count for row in by_line) - sum(row.count for row in shown)
    found = _by_line([(size, own_line(frames), kind_by_stack[frames]) for size, frames in blocks if is_of_loss(frames)])
    count, size = sum(row.count for row in found), _total(row.bytes for row in found)
    largest = sorted(kinds.items(), key=lambda entry: -entry[1][1])
    return revise(
        known,
        live=(*shown, *([LiveAtPeak(line=None, count=others, bytes=rest)] if rest > 0 else [])),
        kinds=tuple(LiveBytes(kind=kind, bytes=held, count=number) for kind, (number, held) in largest),
        loss=revise(found[0], count=count, bytes=size) if found else None,
    )


def _by_line(blocks: Sequence[tuple[int, str | None, LiveKind]]) -> list[LiveAtPeak]:
    """The blocks by the line that asked for them and by kind, largest first."""
    sizes: dict[tuple[str | None, LiveKind], tuple[int, int]] = {}
    for size, line, kind in blocks:
        count, known = sizes.get((line, kind), (0, 0))
        sizes[line, kind] = (count + 1, known + size)
    rows = [LiveAtPeak(line=line, kind=kind, count=count, bytes=size) for (line, kind), (count, size) in sizes.items()]
    return sorted(rows, key=lambda row: -row.bytes)


def _total(sizes: Iterable[int]) -> int:
    return min(sum(sizes), _LARGEST)


def file_and_line(line: str | None) -> str:
    """A line by the name of its file, for a sentence; a table has its path."""
    return "a line that was not recorded" if line is None else re.split(r"[/\\]", line)[-1]


def own_line(frames: Sequence[str]) -> str | None:
    """The innermost line outside of libraries, else the innermost one; ``None`` without any."""
    own = (frame for frame in frames if not any(part in frame for part in _LIBRARIES))
    return next(own, next(iter(frames), None))


class Rests(msgspec.Struct, frozen=True):
    """How a device of a log was at rest between its first and its last sample at work."""

    label: str
    n: int
    idle_ratio: float  #: 1 - their mean utilisation
    resting_ratio: float  #: share of them in stretches at rest
    count: int
    length: int  #: median length of a stretch, in samples; 0 without any
    #: Samples from the start of a stretch to that of the next; ``None`` where they do not come at intervals.
    period: int | None
    sample_ns: int | None  #: time from one sample to the next, median; ``None`` of a log without times
    before: int = 0  #: samples at rest before the first at work; ``after`` the last likewise
    after: int = 0


class LogFacts(msgspec.Struct, frozen=True):
    """What was read of logs."""

    alone: bool  #: nothing but logs was given, so that there are no steps
    devices: tuple[int, ...] = ()  #: how many devices each sampler's log is of, whose every signal is in ``series``
    series: tuple[Series, ...] = ()
    snapshots: tuple[MemorySnapshot, ...] = ()
    own: tuple[MemorySnapshot, ...] = ()  #: the snapshots that are of the judged run; of logs alone all
    #: When each device of a sampler's log was idle, where its use was sampled often enough.
    rests: tuple[Rests, ...] = ()

    def of_devices(self, name: str) -> tuple[Series, ...]:
        """One signal of each device that has it."""
        return tuple(series for series in self.series if series.name == name)


#: A device is at rest in samples below this ratio of its use at work, which is the mean of its use weighted by itself:
#: a run that never takes more than a third of a device is at work at a quarter of it (a choice).
AT_REST_RATIO = 0.25
#: By how much of their distance rests may be early or late and still come at intervals: what they wait for varies.
SLACK = 0.15
FEWEST_SAMPLES = 10  #: fewer samples at work are no pattern (a choice)


def rests(label: str, samples: Sequence[Sample]) -> Rests | None:
    """The pattern of one device; ``None`` of one with fewer than ``FEWEST_SAMPLES`` at work, which nobody used."""
    told = [(sample.t_ns, sample.gpu.utilization_ratio) for sample in samples if sample.gpu is not None]
    known = [(t_ns, value) for t_ns, value in told if value is not None]
    use = np.array([value for _, value in known], dtype=np.float64)
    at_work = float(np.square(use).sum() / use.sum()) if use.any() else 1.0
    resting = use < AT_REST_RATIO * at_work
    working = np.flatnonzero(~resting)
    if len(working) < FEWEST_SAMPLES:
        return None
    first, last = int(working[0]), int(working[-1])
    edges = np.flatnonzero(np.diff(np.r_[False, resting[first : last + 1], False].astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    between = np.diff(np.array([t_ns for t_ns, _ in known], dtype=np.int64))
    each_ns = int(np.median(between)) if len(between) else 0
    return Rests(
        label=label,
        n=last - first + 1,
        idle_ratio=1.0 - float(use[first : last + 1].mean()),
        resting_ratio=float((ends - starts).sum()) / (last - first + 1),
        count=len(starts),
        length=round(float(np.median(ends - starts))) if len(starts) else 0,
        period=regular_distance(starts, SLACK),
        sample_ns=each_ns if each_ns > 0 else None,
        before=first,
        after=len(use) - 1 - last,
    )
