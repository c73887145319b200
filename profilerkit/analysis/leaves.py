"""The leaf table as numbers: an index per part, for arrays."""

from profilerkit.model.step import PARTS

LEAVES: tuple[str, ...] = tuple(PARTS)
#: The parts in which the training thread waits for its batch; copying it to the device is another matter.
WAITS = ("input.fetch", "input.prep", "input.ipc", "input.wait")
_INDEX = {leaf: index for index, leaf in enumerate(LEAVES)}


def leaf(name: str) -> int:
    """The index of a part in ``LEAVES``.

    >>> LEAVES[leaf("over.python")]
    'over.python'
    """
    return _INDEX[name]
