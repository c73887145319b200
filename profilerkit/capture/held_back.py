"""Iterations of a wrapped loader that may turn out to be no steps, held back until something tells."""

from typing import Protocol

#: So many are held back while step() may still come and no optimizer has stepped: when backward passes were seen
#: (gradients are accumulating), and when none were (not a torch training loop).
_ACCUMULATING, _PLAIN = 256, 4


class Training(Protocol):
    """What is seen of the training.

    Attributes:
        backwards: backward passes.
        optimizer_seen: an optimizer stepped.
        worked: one did in the iteration that ends.
    """

    backwards: int
    optimizer_seen: bool
    worked: bool


class HeldBack:
    """Those of one loader; true while there are some that are steps unless ``step()`` is called.

    Attributes:
        iterations: start and end of each, ns of the clock of the steps.
    """

    def __init__(self, after_backwards: int | None = None) -> None:
        """``after_backwards`` passes those of another loader begin: they are steps once they train."""
        self.iterations: list[tuple[int, int]] = []
        self._after_backwards = after_backwards

    def __bool__(self) -> bool:
        return bool(self.iterations) and self._after_backwards is None

    def add(self, start_ns: int, end_ns: int, seen: Training) -> bool:
        """Hold one more back; whether all are known to be steps."""
        self.iterations.append((start_ns, end_ns))
        del self.iterations[:-_ACCUMULATING]
        if self._after_backwards is None:
            return seen.optimizer_seen or len(self.iterations) >= (_ACCUMULATING if seen.backwards else _PLAIN)
        if not seen.worked and seen.backwards == self._after_backwards:
            return False
        self._after_backwards = None
        return True
