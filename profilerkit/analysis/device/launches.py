"""How much of what ran on the device is joined to the call that launched it."""

import re

import numpy as np

from profilerkit.analysis.device.kernels import KernelNames, device_rows
from profilerkit.analysis.device.records import LaunchFacts
from profilerkit.analysis.intervals import I64, Spans, covered
from profilerkit.trace.columns import Category, TraceColumns

_LAUNCH = re.compile(r"^(?:cuda|hip|cu)(?:LaunchKernel|LaunchCooperative|GraphLaunch|ModuleLaunch|ExtLaunch)")
_GRAPH_LAUNCH = re.compile(r"^(?:cuda|hip|cu)GraphLaunch")


def launch_facts(columns: TraceColumns, kinds: KernelNames, launches: I64, window: Spans) -> LaunchFacts:
    """Counts over the whole trace; ``launches`` has the launching runtime row of each device event, -1 for none."""
    calls = launches[device_rows(columns)]
    linked = calls[calls >= 0]
    graph = np.array([_GRAPH_LAUNCH.match(text) is not None for text in columns.strings], dtype=bool)
    by_graph = linked[graph[columns.name[linked]]]
    is_whole = not (columns.damage.truncated or columns.damage.dropped)
    return LaunchFacts(
        events=len(calls),
        unlinked=len(calls) - len(linked),
        in_graphs=len(by_graph),
        graph_launches=len(np.unique(by_graph)),
        lost_ratio=None if is_whole else _lost_ratio(columns, kinds, linked, window),
    )


def launching_rows(columns: TraceColumns) -> I64:
    """Runtime calls that launch kernels or graphs of them."""
    names = np.array([_LAUNCH.match(text) is not None for text in columns.strings], dtype=bool)
    return np.flatnonzero((columns.category == Category.RUNTIME) & names[columns.name])


def used_a_device(columns: TraceColumns) -> bool:
    """Whether the host used a device, which the trace may hold nothing of: it launched work, or NCCL was its backend.

    That the file lists a device says nothing: it lists those of the machine. (Of a file that is cut off the device's
    events may be missing without either sign: Kineto writes the host's first.)
    """
    return bool((columns.dur_ns[launching_rows(columns)] > 0).any()) or columns.meta.backend == "nccl"


def lacks_device_events(columns: TraceColumns) -> bool:
    """Return whether a file without device events may lack them: a device was used, or the file is cut off.

    That of a machine without a device lacks none.
    """
    return used_a_device(columns) or (columns.damage.truncated and not columns.meta.no_device)


def _lost_ratio(columns: TraceColumns, kinds: KernelNames, linked: I64, window: Spans) -> float:
    return max(_without_kernel(columns, np.unique(linked), window), _without_call(columns, kinds, window))


def _without_kernel(columns: TraceColumns, linked: I64, window: Spans) -> float:
    calls = launching_rows(columns)
    calls = calls[covered(window, columns.ts_ns[calls])]
    return 1.0 - float(np.isin(calls, linked).mean()) if len(calls) else 0.0


def _without_call(columns: TraceColumns, kinds: KernelNames, window: Spans) -> float:
    """Share of the math operators in ``window`` during which their thread calls no runtime."""
    math = np.flatnonzero((columns.category == Category.CPU_OP) & kinds.math[columns.name])
    math = math[covered(window, columns.ts_ns[math])]
    calls = np.flatnonzero(columns.category == Category.RUNTIME)
    silent = 0
    for thread in np.unique(columns.thread[math]).tolist():
        own = math[columns.thread[math] == thread]
        at = np.sort(columns.ts_ns[calls[columns.thread[calls] == thread]])
        silent += int((np.searchsorted(at, columns.end_ns[own]) == np.searchsorted(at, columns.ts_ns[own])).sum())
    return silent / len(math) if len(math) else 0.0
