"""A batch that can be given again and again, each time as the loader gave it."""

import copy
import sys
from typing import Any

_PLAIN = (int, float, bool, complex, str, bytes, type(None))


class Replay:
    """A batch at hand.

    Tensors are given as they lie, pinned memory included, and put right before where the loop has changed them in
    place. Lists, tuples and mappings are made anew: loops take things out of them. Anything else is copied each time.
    """

    def __init__(self, batch: Any) -> None:
        """Remember ``batch`` as it is now, before the loop has it. Raises whatever copying it does."""
        self._tensor = sys.modules["torch"].Tensor
        self._tensors: dict[int, tuple[Any, int]] = {}  # a copy of each, and its version when that was right
        self._copied: set[int] = set()
        self._batch = self._remembered(batch)

    def again(self) -> Any:
        """The batch once more."""
        return self._given(self._batch)

    def _remembered(self, part: Any) -> Any:
        """``part`` in containers of its own."""
        kind = type(part)
        if _is_container(part):
            return _rebuilt(part, self._remembered)
        if kind is self._tensor and not part.is_inference() and not part.requires_grad:
            self._tensors[id(part)] = (part.clone(), part._version)
        elif kind not in _PLAIN:
            part = copy.deepcopy(part)
            self._copied.add(id(part))
        return part

    def _given(self, part: Any) -> Any:
        if _is_container(part):
            return _rebuilt(part, self._given)
        number = id(part)
        if number in self._tensors:
            pristine, version = self._tensors[number]
            if part._version != version:
                part.copy_(pristine)
                self._tensors[number] = (pristine, part._version)
            return part.detach()
        return copy.deepcopy(part) if number in self._copied else part


def _is_container(part: Any) -> bool:
    return type(part) in (list, tuple, dict) or (isinstance(part, tuple) and hasattr(type(part), "_fields"))


def _rebuilt(part: Any, of: Any) -> Any:
    """The same container with ``of`` what it holds."""
    kind = type(part)
    if kind is dict:
        return {key: of(one) for key, one in part.items()}
    made = [of(one) for one in part]
    return kind(*made) if hasattr(kind, "_fields") else kind(made)
