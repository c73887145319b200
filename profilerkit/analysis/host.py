"""What a host thread was doing, instant by instant, as layers of priority."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.intervals import I64, NO_SEGMENTS, Segments, Spans, intersect, subtract, union, with_label
from profilerkit.analysis.kernels import in_use, matching
from profilerkit.analysis.leaves import leaf
from profilerkit.rundir.layout import INPUT_SPAN, PHASE_SPAN_PREFIX
from profilerkit.trace.columns import Category, TraceColumns

Mask = npt.NDArray[np.bool_]

#: A call shorter than this did not wait for the device (R47's threshold).
BLOCKING_CALL_NS = 10_000
#: Copies below this size are scalars and masks, not batches (R09's threshold).
BATCH_COPY_BYTES = 64 * 1024
#: A stretch without any host event longer than this is the user's Python, not the gap between two operators.
QUIET_NS = 1_000_000

_DATALOADER = re.compile(r"^enumerate\(DataLoader\)#.*__next__|^" + re.escape(INPUT_SPAN))
_SINGLE_PROCESS = re.compile(r"^enumerate\(DataLoader\)#_SingleProcess")
_ALLOCATOR = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree|MallocHost|FreeHost|HostRegister|HostUnregister)"
    r"|^cuMem(?:Create|Map|Unmap|Release|AddressReserve|AddressFree|SetAccess|Alloc|Free)"
)
_SYNC_CALL = re.compile(
    r"^(?:cuda|hip)(?:Device|Stream|Event)Synchronize|^cu(?:Ctx|Stream|Event)Synchronize|^(?:cuda|hip)Memcpy$"
)
_COPY_CALL = re.compile(r"^(?:cuda|hip|cu)Memcpy")
_COMPILE = re.compile(
    r"dynamo_timed|entire_(?:frame|backward)_compile|backend_compile|compile_inner|^dynamo$|^inductor_codecache"
)
_NAMED = re.compile("^" + re.escape(PHASE_SPAN_PREFIX))
_GC = re.compile(r"gc\.collect|^Python GC")
_ANNOTATIONS = (
    ("other.ckpt", re.compile(r"checkpoint|torch\.save|save_(?:model|state)|^save\b", re.IGNORECASE)),
    ("other.eval", re.compile(r"\b(?:eval|evaluate|evaluation|validate|validation)\b", re.IGNORECASE)),
    ("other.log", re.compile(r"\blog(?:ging)?\b", re.IGNORECASE)),
)


@dataclass(frozen=True, slots=True)
class HostNames:
    """What the names of a trace's events stand for on the host: masks over ``columns.strings``, computed once."""

    loader: Mask
    single_process: Mask
    allocator: Mask
    sync_call: Mask
    copy_call: Mask
    compiles: Mask
    collects: Mask
    annotation: I64  # leaf of a phase, -1 for none
    named: Mask  # phases that the user named for what is no training: checkpoint, evaluation, logging

    @classmethod
    def of(cls, columns: TraceColumns) -> "HostNames":
        """Classify every name in use once."""
        used = in_use(columns)
        annotation = np.full(len(columns.strings), -1, dtype=np.int64)
        annotation[used] = [_annotation_leaf(columns.strings[index]) for index in used.tolist()]

        def mask(pattern: re.Pattern[str]) -> Mask:
            return matching(columns, used, pattern)

        return cls(
            loader=mask(_DATALOADER),
            single_process=mask(_SINGLE_PROCESS),
            allocator=mask(_ALLOCATOR),
            sync_call=mask(_SYNC_CALL),
            copy_call=mask(_COPY_CALL),
            compiles=mask(_COMPILE),
            collects=mask(_GC),
            annotation=annotation,
            named=mask(_NAMED) & np.isin(annotation, [leaf(part) for part, _ in _ANNOTATIONS]),
        )


def phase_leaf(name: str) -> int:
    """The leaf of a phase the user named: checkpoint, evaluation and logging are known by their words."""
    for part, pattern in _ANNOTATIONS:
        if pattern.search(name):
            return leaf(part)
    return leaf("other.phase")


def _annotation_leaf(text: str) -> int:
    """The leaf of an annotation, -1 if it names no phase."""
    if text.startswith(PHASE_SPAN_PREFIX):
        return phase_leaf(text.removeprefix(PHASE_SPAN_PREFIX))
    if text.startswith(("enumerate(DataLoader)", "ProfilerStep#", "Optimizer.", INPUT_SPAN)):
        return -1
    found = phase_leaf(text)
    # Activation checkpointing names its ranges alike: only a saved checkpoint is one.
    recompute = found == leaf("other.ckpt") and "save" not in text.lower()
    return -1 if recompute or found == leaf("other.phase") else found


def main_thread(columns: TraceColumns) -> int:
    """The thread that runs the training loop: owner of most step markers, else of most host operators.

    -1 when the trace holds no host event.
    """
    marks = columns.category == Category.ANNOTATION
    if marks.any():
        wanted = np.array(
            [text.startswith(("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.")) for text in columns.strings]
        )
        marked = columns.thread[marks & wanted[columns.name]]
        if len(marked):
            return int(np.bincount(marked).argmax())
    host = columns.thread[columns.is_a(Category.CPU_OP, Category.RUNTIME)]
    return int(np.bincount(host).argmax()) if len(host) else -1


@dataclass(frozen=True, slots=True)
class HostThread:
    """One thread's activity: ``layers`` in falling priority, and the calls that blocked on the device."""

    layers: tuple[Segments, ...]
    sync_start: I64
    sync_end: I64
    events: Spans


def host_thread(columns: TraceColumns, names: HostNames, thread: int, copied: I64) -> HostThread:
    """Layers of one thread.

    Args:
        columns: the trace.
        names: its classified names.
        thread: id into ``columns.threads``.
        copied: ``(n_events,)`` int64: for a runtime row the leaf of the copy it launched, -1 for none.
    """
    own = columns.thread == thread
    start, end, name = columns.ts_ns, columns.end_ns, columns.name
    category = columns.category

    def spans(rows: Mask) -> Spans:
        return union(start[rows], end[rows])

    operators = spans(own & columns.is_a(Category.CPU_OP, Category.RUNTIME))
    annotated = own & columns.is_a(Category.ANNOTATION, Category.CPU_OP)
    loading = spans(annotated & names.loader[name])
    preparing = intersect(spans(annotated & names.single_process[name]), operators)
    runtime = own & (category == Category.RUNTIME)
    blocking = runtime & names.sync_call[name] & (columns.dur_ns >= BLOCKING_CALL_NS)
    layers = [
        *_phases(columns, names.annotation, own & names.named[name]),
        with_label(preparing, leaf("input.prep")),
        with_label(loading, leaf("input.wait")),
        with_label(spans(runtime & names.allocator[name]), leaf("mem.alloc")),
        *_phases(columns, names.annotation, own & ~names.named[name]),
        with_label(spans(own & (category == Category.OVERHEAD)), leaf("other.prof")),
        with_label(spans(own & names.collects[name]), leaf("over.gc")),
        with_label(spans(own & names.compiles[name]), leaf("warm.compile")),
        *(with_label(spans(runtime & (copied == leaf(part))), leaf(part)) for part in ("input.h2d", "sync.d2h")),
        with_label(spans(blocking), leaf("sync.drain")),
        with_label(operators, leaf("over.dispatch")),
    ]
    order = np.argsort(start[blocking], kind="stable")
    return HostThread(tuple(layers), start[blocking][order], end[blocking][order], operators)


def _phases(columns: TraceColumns, leaf_of: I64, own: Mask) -> list[Segments]:
    """Phases of a thread: checkpoint, evaluation, logging, the user's own. Those the user named own what is in them."""
    leaves = np.where(own & (columns.category == Category.ANNOTATION), leaf_of[columns.name], -1)
    present = [int(value) for value in np.unique(leaves) if value >= 0]
    out = []
    for value in present:
        rows = leaves == value
        out.append(with_label(union(columns.ts_ns[rows], columns.end_ns[rows]), value))
    return out


def drained(thread: HostThread, gap_start: I64, host_end: I64) -> Segments:
    """The part of each gap that a blocking call left behind: from its return until work is issued again.

    The device was busy when the call began and idle when it returned, so the queue ran dry because of it. Long quiet
    stretches are left out: the user's own Python after the call would have kept the device waiting anyway.

    Args:
        thread: the launching thread.
        gap_start: ``(n,)`` int64, starts of gaps.
        host_end: ``(n,)`` int64, when the launch call that ends the gap returned.
    """
    if not len(thread.sync_start) or not len(gap_start):
        return NO_SEGMENTS
    last = np.searchsorted(thread.sync_start, gap_start, side="left") - 1
    caused = (last >= 0) & (thread.sync_end[np.maximum(last, 0)] >= gap_start)
    span = union(gap_start[caused], host_end[caused])
    if not len(span):
        return NO_SEGMENTS
    quiet = subtract(span, thread.events)
    long = (quiet.end - quiet.start) > QUIET_NS
    return with_label(subtract(span, Spans(quiet.start[long], quiet.end[long])), leaf("sync.drain"))
