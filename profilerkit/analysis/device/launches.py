"""How much of what ran on the device is joined to the call that launched it."""

import re

import numpy as np

from profilerkit.analysis.device.kernels import device_rows
from profilerkit.analysis.facts import LaunchFacts
from profilerkit.analysis.intervals import I64
from profilerkit.trace.columns import TraceColumns

_GRAPH_LAUNCH = re.compile(r"^(?:cuda|hip|cu)GraphLaunch")


def launch_facts(columns: TraceColumns, launches: I64) -> LaunchFacts:
    """Counts over the whole trace; ``launches`` has the launching runtime row of each device event, -1 for none."""
    calls = launches[device_rows(columns)]
    linked = calls[calls >= 0]
    graph = np.array([_GRAPH_LAUNCH.match(text) is not None for text in columns.strings], dtype=bool)
    by_graph = linked[graph[columns.name[linked]]]
    return LaunchFacts(
        events=len(calls),
        unlinked=len(calls) - len(linked),
        in_graphs=len(by_graph),
        graph_launches=len(np.unique(by_graph)),
    )
