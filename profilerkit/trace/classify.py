"""Kinds of events by their names, and the ranges of a thread that mark steps."""

import re
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec
import numpy as np

from profilerkit.trace.columns import I8, I32, I64, Bools, Category

# Kineto's ActivityType names, and the capitals that PyTorch 1.8 wrote in 2021.
CATEGORIES: dict[str, Category] = {
    **dict.fromkeys(("kernel", "Kernel", "mtia_ccp_events"), Category.KERNEL),
    **dict.fromkeys(("gpu_memcpy", "Memcpy"), Category.MEMCPY),
    **dict.fromkeys(("gpu_memset", "Memset"), Category.MEMSET),
    **dict.fromkeys(("cpu_op", "Operator"), Category.CPU_OP),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver"), Category.RUNTIME),
    **dict.fromkeys(("mtia_runtime", "glow_runtime", "Runtime"), Category.RUNTIME),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver"), Category.RUNTIME),
    "hpu_op": Category.RUNTIME,  # in Kineto a host-side event of the HPU, in spite of its name
    "user_annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "cuda_sync": Category.SYNC,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
}

# The oldest profiler wrote no categories; the process said what an event was.
LEGACY_PROCESSES: dict[str, Category] = {"CPU functions": Category.CPU_OP, "CUDA functions": Category.KERNEL}

# Before 1.12 the profiler's own annotations were operators.
_ANNOTATION_NAME = re.compile(r"ProfilerStep[#*]|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#")

# What a queue of an MTIA device does beside its jobs: it waits for another queue, says how far it is, and copies from
# the host or to it.
_QUEUE_KIND = "mtia_ccp_events"
_QUEUE_NAMES = {"event_wait": Category.SYNC, "event_record": Category.SYNC, "dma_request": Category.MEMCPY}


def classify(
    name: I32,
    kind: I32,
    thread: I32,
    *,
    strings: Sequence[str],
    kinds: Sequence[str],
    threads: Sequence[tuple[str, str]],
) -> I8:
    """Return ``(n_events,)`` int8 values of ``Category``.

    Args:
        name: ``(n_events,)`` ids into ``strings``.
        kind: ``(n_events,)`` ids into ``kinds``, the category texts as written; empty where there is none.
        thread: ``(n_events,)`` ids into ``threads``.
        strings: id to name.
        kinds: id to category text.
        threads: id to (pid, tid).
    """
    by_kind = np.array([CATEGORIES.get(text, Category.OTHER) for text in kinds], np.int8)
    category: I8 = by_kind[kind]
    operators = category == Category.CPU_OP
    if operators.any():
        is_annotation = np.array([_ANNOTATION_NAME.match(text) is not None for text in strings])
        category[operators & is_annotation[name]] = Category.ANNOTATION
    if _QUEUE_KIND in kinds:
        by_name = np.array([_QUEUE_NAMES.get(text, CATEGORIES[_QUEUE_KIND]) for text in strings], np.int8)
        queued = kind == kinds.index(_QUEUE_KIND)
        category[queued] = by_name[name[queued]]
    if "" in kinds:
        by_process = np.array([LEGACY_PROCESSES.get(pid, Category.OTHER) for pid, _ in threads], np.int8)
        nameless = kind == kinds.index("")
        category[nameless] = by_process[thread[nameless]]
    return category


Phase = Literal["forward", "loss", "backward", "optimizer", "zero_grad"]
PHASES: tuple[Phase, ...] = get_args(Phase)

#: Each word that names a phase; a name may hold one phase, the ``loss`` beside it, and words that name none.
_WORDS: dict[str, Phase] = {
    **dict.fromkeys(("forward", "fwd", "fprop"), "forward"),
    **dict.fromkeys(("loss", "criterion"), "loss"),
    **dict.fromkeys(("backward", "bwd", "bprop", "backprop", "backpropagation"), "backward"),
    **dict.fromkeys(("optimizer", "optimiser", "optim", "opt"), "optimizer"),
    "zero": "zero_grad",
}
#: With other words a name is about something else: ``load optimizer``, ``eval forward``, ``on_before_optimizer_step``.
_FILLER = re.compile(
    r"a|and|apply|batch|call|compute|computation|do|grad(?:ient)?s?|inner|iter(?:ation)?|main|micro(?:batch|step)?|model"
    r"|net(?:work)?|of|pass|phase|run|section|steps?|the|torch|train(?:ing)?|update"
)
#: Words of snake_case, of CamelCase, and of plain text.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: What Lightning's profiler writes before the function, and the class that a method is of.
_ORIGIN = re.compile(r"^(?:\[[^\]]*\])*(?:[A-Z]\w*\.)?")
#: No longer name is one of a phase.
_LONGEST = 100


def phase_of(name: str) -> Phase | None:
    """The phase that a range's name says it is of, all its words considered; ``None`` where it says none, or several.

    >>> [phase_of(name) for name in ("## forward ##", "fwd_microstep", "opt.step()", "[pl][profile]Lit.optimizer_step")]
    ['forward', 'forward', 'optimizer', 'optimizer']
    >>> [phase_of(name) for name in ("load optimizer", "forward_backward", "step 5", "adopt", "Backward Pass")]
    [None, None, None, None, 'backward']
    """
    return _phase(name) or _phase(_ORIGIN.sub("", name)) if len(name) <= _LONGEST else None


def _phase(name: str) -> Phase | None:
    words = {word.lower() for word in _WORD.findall(name)}
    named = {_WORDS[word] for word in words & _WORDS.keys()}
    if not named or not all(_FILLER.fullmatch(word) for word in words - _WORDS.keys()):
        return None
    if "zero_grad" in named:
        return "zero_grad" if named <= {"zero_grad", "optimizer"} and words & {"grad", "grads", "gradients"} else None
    one = named - {"loss"} or named
    return next(iter(one)) if len(one) == 1 else None


#: A word for a step and the number behind it, as in "step 12", "Iteration: 3", "train_step_5" and "[batch #7]".
_NUMBERED = re.compile(r"(?:^|[^a-zA-Z])(?:step|iter|iteration|batch)[\s_:#=(\[-]*(\d{1,18})(?!\d)", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
#: What validates is no step of the training where something else is.
_VALIDATES = re.compile(r"(?:^|[^a-zA-Z])(?:val|valid|validation|eval|evaluation|test)(?:[^a-zA-Z]|$)", re.IGNORECASE)
#: A range that is the only one must be named for a step; of several in turn one for a part of it.
_STEP = re.compile(
    r"(?:^|[^a-zA-Z])(?:step|iter|iteration|batch|train|training|inference)(?:[^a-zA-Z]|$)", re.IGNORECASE
)
#: Fewer ranges with numbers, or fewer turns of ranges without, show nothing that repeats.
_FEWEST_NUMBERED, _FEWEST_TURNS = 2, 3
#: Share of the ranges that must launch something, of those that begin while launches were recorded; and of one kind
#: that must lie within another that encloses it.
_MOST = 0.9
#: More wordings with rising numbers than this are no steps.
_MOST_WORDINGS = 20
_LONGEST_NAME = 300


class Ranges(msgspec.Struct, frozen=True):
    """NVTX ranges of one process; arrays are ``(n,)`` int64, ``name`` ids into ``names``.

    ``own`` tells those that the program named itself from those of operators and libraries.
    """

    names: Sequence[str]
    name: I64
    start: I64
    end: I64
    thread: I64
    own: Bools


class StepRanges(msgspec.Struct, frozen=True):
    """The ranges that mark steps: which they are, by their start, the number of each, and what they are called."""

    rows: I64
    number: I64
    called: str


def step_ranges(ranges: Ranges, launched: I64, passes: I64 | None = None) -> StepRanges | None:
    """Return the ranges in which work was launched that mark the steps; ``None`` where it is not clear which do.

    Ranges with the number of a step come first: those of one wording and thread whose numbers rise. Of several
    wordings the one counts that encloses the others, as with micro-batches in a step. Ranges before or behind all
    recorded launches are steps too: the device's records may end early. Without any the outermost ranges of a thread
    tell, where their names come in turn, as forward, backward and optimizer do: the first of the turn begins a step.
    Whatever they are called, they do where each turn holds a backward pass.

    Args:
        ranges: the ranges.
        launched: sorted starts of the calls that launched kernels.
        passes: sorted starts of what a backward pass does; ``None`` where that is not known.
    """
    order = np.lexsort((-ranges.end, ranges.start))
    busy = np.searchsorted(launched, ranges.end[order]) > np.searchsorted(launched, ranges.start[order])
    seen = np.zeros(len(order), np.bool_)
    if len(launched):
        seen = (ranges.start[order] <= launched[-1]) & (ranges.end[order] >= launched[0])
    return _numbered(ranges, order, busy, seen) or _in_turn(ranges, order[busy], passes)


def _numbered(ranges: Ranges, order: I64, busy: Bools, seen: Bools) -> StepRanges | None:
    """Ranges with numbers; ``order`` holds rows by their start, ``busy`` which launch, ``seen`` which could show it."""
    numbers = np.array([_number(text) for text in ranges.names], dtype=np.int64)
    numbered = numbers[ranges.name[order]] >= 0
    order, busy, seen = order[numbered], busy[numbered], seen[numbered]
    found: list[I64] = []
    for members in _alike(ranges, order):
        rows = order[members]
        apart = (ranges.start[rows[1:]] >= ranges.end[rows[:-1]]).all()
        # All end as one: they were pushed and never popped, and the next push ends a step.
        apart |= (ranges.end[rows] == ranges.end[rows[0]]).all()
        number = numbers[ranges.name[rows]]
        rising = ((np.diff(number) > 0) | (number[1:] == number.min())).all()  # from anew in each epoch
        launching = busy[members].sum()
        if launching >= _FEWEST_NUMBERED and apart and rising and launching >= _MOST * seen[members].sum():
            found.append(rows)
    if len(found) > _MOST_WORDINGS:
        return None
    outer = [rows for rows in found if not any(_encloses(ranges, other, rows) for other in found if other is not rows)]
    if len(outer) > 1:
        outer = [rows for rows in outer if not _VALIDATES.search(ranges.names[ranges.name[rows[0]]][:_LONGEST_NAME])]
    if len(outer) != 1:
        return None
    rows = outer[0]
    number = numbers[ranges.name[rows]]
    if (np.diff(number) <= 0).any():
        number = np.arange(len(rows))
    return StepRanges(rows, number, ranges.names[ranges.name[rows[0]]])


def _alike(ranges: Ranges, rows: I64) -> list[I64]:
    """Positions in ``rows`` of the ranges that have one wording and thread, in their order."""
    if not len(rows):
        return []
    wordings: dict[str, int] = {}
    used, place = np.unique(ranges.name[rows], return_inverse=True)
    texts = [_DIGITS.sub("N", ranges.names[name][:_LONGEST_NAME]) for name in used.tolist()]
    worded = np.array([wordings.setdefault(text, len(wordings)) for text in texts], np.int64)[place]
    order = np.lexsort((worded, ranges.thread[rows]))
    worded, thread = worded[order], ranges.thread[rows][order]
    begins = np.flatnonzero((worded[1:] != worded[:-1]) | (thread[1:] != thread[:-1])) + 1
    return np.split(order, begins)


def _number(text: str) -> int:
    found = _NUMBERED.search(text[:_LONGEST_NAME])
    return int(found[1]) if found else -1


def _encloses(ranges: Ranges, outer: I64, inner: I64) -> bool:
    at = np.searchsorted(ranges.start[outer], ranges.start[inner], side="right") - 1
    within = (at >= 0) & (ranges.end[inner] <= ranges.end[outer[np.maximum(at, 0)]])
    return bool(within.mean() >= _MOST)


def _in_turn(ranges: Ranges, order: I64, passes: I64 | None) -> StepRanges | None:
    """Outermost ranges whose names come in turn; ``order`` holds the rows that launch by their start."""
    numbered = np.array([_number(text) >= 0 for text in ranges.names], dtype=np.bool_)
    order = order[ranges.own[order] & ~numbered[ranges.name[order]]]
    if not len(order):
        return None
    rows = order[ranges.thread[order] == np.bincount(ranges.thread[order]).argmax()]
    # What comes once is a set-up, the whole loop, or a single checkpoint.
    rows = rows[np.bincount(ranges.name[rows])[ranges.name[rows]] > 1]
    before = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(ranges.end[rows])[:-1]][: len(rows)]
    rows = rows[ranges.start[rows] >= before]
    names = ranges.name[rows].tolist()
    turn = list(dict.fromkeys(names))
    if len(names) < max(_FEWEST_TURNS * len(turn), 1):
        return None
    first = rows[:: len(turn)]
    comes_in_turn = all(name == turn[place % len(turn)] for place, name in enumerate(names))
    texts = [ranges.names[name][:_LONGEST_NAME] for name in turn]
    tells = any(_STEP.search(text) for text in texts) or (len(turn) > 1 and any(map(phase_of, texts)))
    tells |= passes is not None and each_holds(passes, ranges.start[first])
    if not comes_in_turn or not tells:
        return None
    return StepRanges(first, np.arange(len(first)), ranges.names[turn[0]])


def each_holds(instants: I64, start: I64) -> bool:
    """Whether an instant of those sorted lies between each start and the next, and behind the last."""
    edges = np.searchsorted(instants, np.r_[start, np.iinfo(np.int64).max])
    return bool((np.diff(edges) > 0).all())
