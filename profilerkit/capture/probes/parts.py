"""How many steps a probe puts in, and what each is for."""

from math import lcm
from typing import Literal, NamedTuple

from profilerkit.capture.probes.kinds import Probe

#: Steps that are timed with the change, and of those they are compared with: 10 to 30 tell a few percent (a choice).
STEPS = 20
_HALF = STEPS // 2
#: Steps after a change inside of a probe that are not timed.
_FIRST_STEPS = 3
#: Batches of so many workers come in bursts; timed are whole ones.
_LONGEST_BURST = 16


class Part(NamedTuple):
    """Steps that are put in one after the other: how many, with the change or without, and whose times they are."""

    steps: int
    is_changed: bool
    times: Literal["control", "probed"] | None = None


def own_steps(cycle: int, workers: int) -> int:
    """The run's own steps that are timed on either side of a probe, fed by so many workers."""
    return _whole(_HALF, lcm(cycle, _burst(workers)))


def parts(probe: Probe, cycle: int, ahead: int) -> list[Part]:
    """What a probe puts in, in whole cycles; the loop holds what it held before after every ``ahead`` steps, if not 0.

    Those are the last: what was fetched for the change is not to be trained on afterwards.
    """
    burst = _burst(probe.burst)
    settling, half = max(_FIRST_STEPS, 2 * burst), _whole(_HALF, cycle)
    sequence = [Part(settling, True), Part(_whole(STEPS, lcm(cycle, burst)), True, "probed")]
    if probe.has_control:
        control = [Part(settling, False), Part(half, False, "control")]
        sequence = [*control, *sequence, *control]
    measured = sum(part.steps for part in sequence)
    sequence.append(Part(_whole(measured, cycle) - measured, sequence[-1].is_changed))
    sequence.append(Part(lcm(ahead, cycle), False))
    return [part for part in sequence if part.steps]


def _burst(workers: int) -> int:
    return min(max(workers, 1), _LONGEST_BURST)


def _whole(count: int, cycle: int) -> int:
    """At least ``count`` steps, in whole cycles."""
    return -(-count // cycle) * cycle
