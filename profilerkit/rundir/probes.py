"""``probes.json``: what the in-run probes of one rank timed, and which records of the rank are theirs.

The file is written when the recording ends. Its numbers are times; what they amount to is for the analysis to say.
"""

from collections.abc import Sequence

import msgspec

from profilerkit.model.probe_names import ProbeName
from profilerkit.rundir.layout import EVENT, EventKind

#: Kinds of records that stay where a probe made them: they say where it was.
_KEPT = (EventKind.STEP, EventKind.WINDOW, EventKind.PROBE)


class ProbeRun(msgspec.Struct, frozen=True, kw_only=True):
    """One probe. Times are of single steps, ns, in their order.

    Attributes:
        name: which probe.
        change: what its steps did differently, with the values.
        usual_ns: of the run's own steps before and after it.
        control_ns: of steps on a batch at hand without the change; empty where the run's own steps are compared with.
        probed_ns: of steps with the change.
        first_step: number of the first step that it put in; ``None`` where it put in none.
        last_step: of the last one.
        reason: why it was not made or not finished; empty when it was.
        note: what weakens it; may be empty.
    """

    name: ProbeName
    change: str = ""
    usual_ns: tuple[int, ...] = ()
    control_ns: tuple[int, ...] = ()
    probed_ns: tuple[int, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    reason: str = ""
    note: str = ""


class ProbesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``probes.json``: the probes in the order in which they were made."""

    probes: tuple[ProbeRun, ...]


def without_probed(events: bytes) -> bytes:
    """``events`` without what happened inside of probes, but for the steps: it is no part of the run's own work.

    >>> probe, inside = (EventKind.PROBE, 0, 0, 10, 5, 7), (EventKind.WAIT, 0, 0, 12, 1, 0)
    >>> events = b"".join(EVENT.pack(*record) for record in (probe, inside, (EventKind.WAIT, 0, 0, 15, 1, 0)))
    >>> [record[3] for record in EVENT.iter_unpack(without_probed(events))]
    [10, 15]
    """
    records = list(EVENT.iter_unpack(events))
    probes = [(start, start + dur) for kind, _, _, start, dur, _ in records if kind == EventKind.PROBE]
    if not probes:
        return events
    kept = [record for record in records if record[0] in _KEPT or not _inside(record[3], probes)]
    return b"".join(EVENT.pack(*record) for record in kept)


def _inside(instant_ns: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= instant_ns < end for start, end in spans)
