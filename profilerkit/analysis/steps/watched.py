"""Checkpoints and compilations that no phase of the user's names, as phases with names of their own."""

from collections.abc import Mapping

import numpy as np

from profilerkit.analysis.events import Events, id_of
from profilerkit.analysis.intervals import union
from profilerkit.rundir.layout import EventFlag, EventKind

#: Kind of record to the name of the phase that it stands for. A compilation also counts on another thread: there a
#: backward pass compiles, which the training thread waits for. A save on another thread is one in the background.
_NAMES = {EventKind.SAVE: "checkpoint", EventKind.COMPILE: "compile"}


def with_watched(phases: Events, events: Events, names: Mapping[int, str]) -> tuple[Events, Mapping[int, str]]:
    """``phases`` and what was watched outside all of them, with the names of both.

    Args:
        phases: PHASE records.
        events: records of all kinds.
        names: name of each name id.
    """
    named = union(phases["start"].astype(np.int64), (phases["start"] + phases["dur"]).astype(np.int64))
    found = [phases]
    names = dict(names)
    for kind, name in _NAMES.items():
        seen = events[events["kind"] == kind]
        if kind == EventKind.SAVE:
            seen = seen[(seen["flags"] & EventFlag.OTHER_THREAD) == 0]
        before = np.searchsorted(named.start, seen["start"], side="right") - 1
        inside = before >= 0
        inside[inside] = seen["start"][inside] < named.end[before[inside]]
        if not inside.all():
            number = id_of(name, names, events)
            names[number] = name
            free = seen[~inside]
            free["kind"], free["flags"], free["name"] = EventKind.PHASE, 0, number
            found.append(free)
    return np.concatenate(found), names
