"""Of which operators it is read what was passed to them."""

import re

# Four of five operators of a real trace are views, allocations, or calls of another one that does the work.
_LAUNCHES_NOTHING = re.compile(
    r"aten::(?:as_strided_?|alias|chunk|clone|contiguous|detach_?|empty\w*|expand\w*|flatten|item|is_nonzero|lift_fresh"
    r"|movedim|narrow|new_\w+|ones\w*|permute|_?reshape\w*|resize_|resolve_\w+|result_type|select|set_|slice|split\w*"
    r"|squeeze|t|to|_to_copy|transpose|type_as|unbind|unflatten|_?unsafe_view|unsqueeze|view|zeros\w*)$|detach_?$"
)
# The cost of these depends on more than the shapes: on stride, padding, dilation, whether attention is causal. Of all
# others the values differ from call to call (slices, step sizes), so that their texts would fill the table of strings.
_VALUES_MATTER = re.compile(r"aten::\w*(?:conv|attention)|flash_attn")
# More than the distinct operators of any real trace; further ones are searched each time.
_REMEMBERED = 2**16


def launches_nothing(name: str) -> bool:
    """Whether an operator starts no work itself.

    >>> launches_nothing("aten::view"), launches_nothing("aten::copy_")
    (True, False)
    """
    return _LAUNCHES_NOTHING.match(name) is not None


class ArgumentsWanted(dict[str, tuple[bool, bool]]):
    """Operator to whether its shapes, and whether its values, are read.

    >>> wanted = ArgumentsWanted()
    >>> wanted["aten::mm"], wanted["aten::conv2d"], wanted["aten::t"]
    ((True, False), (True, True), (False, False))
    """

    def __missing__(self, name: str) -> tuple[bool, bool]:
        wanted = not launches_nothing(name), _VALUES_MATTER.match(name) is not None
        if len(self) < _REMEMBERED:
            self[name] = wanted
        return wanted
