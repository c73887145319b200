"""By which method figures were measured: those of an earlier one are labelled, and joined to no others."""

from typing import Any

#: Of how a tool stands for itself. 1, which wrote no number: by the mean of the steps of a block. 2: by its median
#: step. 3: ours in turns of single steps, without blocks. 4: in turns of a few, of which the first is not counted.
METHOD = 4
_FIRST = 1


def method_of(document: dict[str, Any]) -> int:
    """The method of a document of this benchmark."""
    return int(document.get("method", _FIRST))


def earlier(document: dict[str, Any]) -> str:
    """What a reader must know of figures of an earlier method; empty for today's."""
    if method_of(document) == METHOD:
        return ""
    if method_of(document) == _FIRST:
        return "Measured by an earlier method: means of blocks, where today a few steps take turns."
    return "Measured by an earlier method: by blocks, or in turns of single steps, where today a few steps take turns."
