"""Whether the first steps are over: the compiler is done and steps take about as long as each other."""

import sys
from collections.abc import Sequence

#: Steps that have to be alike, and how many times longer or shorter than their median they may be.
_ALIKE = 3
_ALIKE_RATIO = 1.5
#: A difference that the scheduler of a busy host makes by itself; compiling and tuning take longer.
_NOISE_NS = 20_000_000


class Settling:
    """Asked once at the start of a step."""

    def __init__(self) -> None:
        self._frames = _compiled_frames()  # the process may have compiled before

    def is_over(self, last_ns: Sequence[int]) -> bool:
        """Whether the last steps are alike, and torch.compile compiled nothing since the question was asked last.

        Fewer than three steps are not compared: whoever traces so early wants to see the beginning.
        """
        frames = _compiled_frames()
        compiled, self._frames = frames != self._frames, frames
        if compiled:
            return False
        recent = sorted(last_ns[-_ALIKE:])
        if len(recent) < _ALIKE:
            return True
        usual = recent[_ALIKE // 2]
        longest = max(_ALIKE_RATIO * usual, usual + _NOISE_NS)
        shortest = min(usual / _ALIKE_RATIO, usual - _NOISE_NS)
        return shortest <= recent[0] and recent[-1] <= longest


def _compiled_frames() -> int:
    """Functions that torch.compile has looked at so far; 0 where it is not in use."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["frames"].get("total", 0)) if counters and "frames" in counters else 0
