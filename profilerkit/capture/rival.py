"""Notices that the user starts a profiler of their own while a deep window is open.

torch has one profiler session per process: a second one takes the first one's events, and exporting the first then
crashes the process (torch 2.13, CPU). So the window must be closed before the other session begins.
"""

import sys
from collections.abc import Callable
from typing import Any

_METHOD = "_prepare_trace"  # every way into a session, old and new, goes through it


class RivalWatch:
    """Calls ``give_way`` before another profiler prepares itself, from ``begin`` until ``end``."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self._original: Callable[[Any], Any] | None = None
        self._ours: Callable[[Any], Any] | None = None

    def begin(self) -> None:
        """Start watching; call it after our own profiler has prepared itself."""
        owner = sys.modules["torch"].autograd.profiler.profile
        original = owner.__dict__[_METHOD]

        def prepare(profiler: Any) -> Any:
            if self._original is not None:
                self._give_way()
            return original(profiler)

        self._original, self._ours = original, prepare
        setattr(owner, _METHOD, prepare)

    def end(self) -> None:
        """Stop watching."""
        original, self._original = self._original, None
        if original is None:
            return
        owner = sys.modules["torch"].autograd.profiler.profile
        if owner.__dict__.get(_METHOD) is self._ours:
            setattr(owner, _METHOD, original)
