"""What the loops of scripts/check_diffs do."""

from typing import NamedTuple

#: How much more the third loop does in each step.
CHANGE = 0.10
#: Loop to how much it does: two are the same program.
LOOPS = {"a": 1.0, "b": 1.0, "c": 1.0 + CHANGE}
STEPS = 240
#: Passes come in tens: a tenth more of them is a whole number.
UNIT = 10


class Kind(NamedTuple):
    """What a step does: seconds asleep, as on a device or a disk, and passes through the model, on this processor."""

    asleep_s: float
    passes: int


#: Steps of about 30 ms on a current processor: asleep for most of it, for two thirds of it, and not at all.
KINDS = {
    "sleeping": Kind(0.026, UNIT),
    "mixed": Kind(0.020, 2 * UNIT),
    "computing": Kind(0.0, 8 * UNIT),
}
#: Two busy cores cannot carry loops that only compute: what is said of them says more about the host.
USUAL = ("sleeping", "mixed")
