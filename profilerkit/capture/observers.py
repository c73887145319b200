"""Who wants to know of steps as they happen: at once, or as far as they do not mind, a few steps later."""

from typing import NamedTuple, Protocol

NEVER = 1 << 62


class Rest(NamedTuple):
    """What an observer need not be told at once.

    Attributes:
        until: the step whose start is told; the starts of those before are not told at all.
        longest_ns: the end of a step that took longer is told at once; of the others later, in their order.
        steps: at most so many are told later.
    """

    until: int
    longest_ns: int
    steps: int


#: Where nobody observes.
ALWAYS = Rest(NEVER, NEVER, NEVER)


class Observer(Protocol):
    """Follows steps as they happen, as trace windows and probes do."""

    def step_started(self, number: int) -> None:
        """Step ``number`` starts now."""

    def step_ended(self, number: int, dur_ns: int) -> None:
        """Step ``number`` ends now, whole; it took that long."""

    def step_cut(self) -> None:
        """The step that started last will not be counted."""

    def rest(self) -> Rest | None:
        """What may wait from now on; ``None`` when nothing may."""
