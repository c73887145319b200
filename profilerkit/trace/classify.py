"""What an event is, from the category dialects of all PyTorch releases and devices."""

import re
from collections.abc import Sequence

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
