"""The leaf table as numbers: an index per part, for arrays."""

from profilerkit.model.step import PARTS

LEAVES: tuple[str, ...] = tuple(PARTS)
_INDEX = {leaf: index for index, leaf in enumerate(LEAVES)}


def leaf(name: str) -> int:
    """The index of a part in ``LEAVES``.

    >>> LEAVES[leaf("over.python")]
    'over.python'
    """
    return _INDEX[name]
