"""Of which operators the values of the arguments are read."""

import re
from collections.abc import Mapping
from itertools import islice

import numpy as np
import numpy.typing as npt

from profilerkit.trace.columns import I32

# The cost of these depends on more than the shapes: on stride, padding, dilation, whether attention is causal. Of all
# others the values differ from call to call (slices, step sizes), so that their texts would fill the table of strings.
_VALUES_MATTER = re.compile(r"aten::\w*(?:conv|attention)|flash_attn")


class ArgumentsWanted:
    """Which name ids are those of operators whose arguments are read.

    >>> ArgumentsWanted().rows({"aten::mm": 0, "aten::conv2d": 1}, np.array([1, 0, 1]))
    array([0, 2])
    """

    def __init__(self) -> None:
        self._wanted: npt.NDArray[np.bool_] = np.empty(0, np.bool_)

    def rows(self, strings: Mapping[str, int], names: I32) -> npt.NDArray[np.int64]:
        """Return which of ``names``, ids into ``strings``, are such operators."""
        known = len(self._wanted)
        if len(strings) > known:
            found = [_VALUES_MATTER.match(text) is not None for text in islice(strings, known, None)]
            self._wanted = np.concatenate([self._wanted, np.array(found, np.bool_)])
        return np.flatnonzero(self._wanted[names])
