"""Of which operators it is read what was passed to them."""

import re
from collections.abc import Mapping
from itertools import islice

import numpy as np

from profilerkit.trace.columns import I32, Bools

# Four of five operators of a real trace are views, allocations, or calls of another one that does the work.
_LAUNCHES_NOTHING = re.compile(
    r"aten::(?:as_strided_?|alias|chunk|clone|contiguous|detach_?|empty\w*|expand\w*|flatten|item|is_nonzero|lift_fresh"
    r"|movedim|narrow|new_\w+|ones\w*|permute|_?reshape\w*|resize_|resolve_\w+|result_type|select|set_|slice|split\w*"
    r"|squeeze|t|to|_to_copy|transpose|type_as|unbind|unflatten|_?unsafe_view|unsqueeze|view|zeros\w*)$|detach_?$"
)
# The cost of these depends on more than the shapes: on stride, padding, dilation, whether attention is causal. Of all
# others the values differ from call to call (slices, step sizes), so that their texts would fill the table of strings.
_VALUES_MATTER = re.compile(r"aten::\w*(?:conv|attention)|flash_attn")


def launches_nothing(name: str) -> bool:
    """Whether an operator starts no work itself.

    >>> launches_nothing("aten::view"), launches_nothing("aten::copy_")
    (True, False)
    """
    return _LAUNCHES_NOTHING.match(name) is not None


class ArgumentsWanted:
    """Which name ids are those of operators whose shapes, and whose values, are read.

    >>> wanted = ArgumentsWanted()
    >>> wanted.of({"aten::mm": 0, "aten::conv2d": 1, "aten::t": 2}, np.array([1, 2, 0]))
    (array([ True, False,  True]), array([ True, False, False]))
    """

    def __init__(self) -> None:
        self._wanted: Bools = np.empty((2, 0), np.bool_)

    def of(self, strings: Mapping[str, int], names: I32) -> tuple[Bools, Bools]:
        """Return ``(n,)`` whether the shapes, and whether the values, of ``names`` are read, ids into ``strings``."""
        known = self._wanted.shape[1]
        if len(strings) > known:
            new = list(islice(strings, known, None))
            found = [
                [not launches_nothing(text) for text in new],
                [_VALUES_MATTER.match(text) is not None for text in new],
            ]
            self._wanted = np.concatenate([self._wanted, np.array(found, np.bool_)], axis=1)
        shapes, values = self._wanted[:, names]
        return shapes, values
