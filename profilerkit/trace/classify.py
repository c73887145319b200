"""Find what an event is: by its category in the dialects of all releases and devices, and by its name."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from profilerkit.trace.columns import I8, I32, Category

# Kineto's ActivityType names, and the capitals that PyTorch 1.8 wrote in 2021.
CATEGORIES: dict[str, Category] = {
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "mtia_ccp_events": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "cpu_op": Category.CPU_OP,
    "Operator": Category.CPU_OP,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "glow_runtime": Category.RUNTIME,
    "hpu_op": Category.RUNTIME,  # in Kineto a host-side event of the HPU, in spite of its name
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
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
    return _known(name) if len(name) <= _LONGEST else None


@lru_cache(maxsize=2**17)  # every module that looks for phases asks of all ranges
def _known(name: str) -> Phase | None:
    return _phase(name) or _phase(_ORIGIN.sub("", name))


def _phase(name: str) -> Phase | None:
    words = {word.lower() for word in _WORD.findall(name)}
    named = {_WORDS[word] for word in words & _WORDS.keys()}
    if not named or not all(_FILLER.fullmatch(word) for word in words - _WORDS.keys()):
        return None
    if "zero_grad" in named:
        return "zero_grad" if named <= {"zero_grad", "optimizer"} and words & {"grad", "grads", "gradients"} else None
    one = named - {"loss"} or named
    return next(iter(one)) if len(one) == 1 else None
