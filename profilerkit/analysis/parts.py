"""The leaf table as numbers: an index per part, for arrays."""

from profilerkit.model.step import PARTS
from profilerkit.trace.columns import I64

LEAVES: tuple[str, ...] = tuple(PARTS)
#: The parts in which the training thread waits for its batch; copying it to the device is another matter.
WAITS = ("input.fetch", "input.prep", "input.ipc", "input.wait")
#: The named parts in which the training stands still for something that is done once in a while; and all such parts.
NAMED_PAUSES = ("other.ckpt", "other.eval", "other.log", "other.phase")
PAUSES = (*NAMED_PAUSES, "other.stall")
#: The device's work of a step where no trace tells its kernels.
UNSPLIT = "compute.unsplit"
_INDEX = {leaf: index for index, leaf in enumerate(LEAVES)}


def leaf(name: str) -> int:
    """The index of a part in ``LEAVES``."""
    return _INDEX[name]


def leaf_times(totals: I64) -> dict[str, int]:
    """Leaf name to ns, without the empty ones."""
    return {LEAVES[index]: int(value) for index, value in enumerate(totals) if value}
