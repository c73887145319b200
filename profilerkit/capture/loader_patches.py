"""The two patches through which any torch ``DataLoader`` is seen."""

import weakref
from collections.abc import Callable
from typing import Any

from profilerkit.capture.loader import FIRST, INFERRED, FetchTimer
from profilerkit.capture.loader_claims import CLAIM, Claim, length, sampler_of


def patched_next(timer: FetchTimer, original: Callable[[Any], Any], look: Callable[[Any], None] | None = None) -> Any:
    """A replacement for ``_BaseDataLoaderIter.__next__``; ``look`` is shown the iterator before each fetch."""
    here, trace, tracker = timer.here, timer.trace, timer.tracker
    fetch, fetch_again = timer.fetch, timer.fetch_again

    def timed_next(self: Any) -> Any:
        if not timer.armed:
            return original(self)
        if look is not None and getattr(self, "_num_workers", True):
            look(self)
        doing = here.doing
        if tracker.steady == id(self) and doing is timer.trains and not doing.phases:
            return fetch_again(original, self)
        if doing.fetching:
            return original(self)
        yielded = getattr(self, "_num_yielded", -1)
        first = FIRST if yielded == 0 else 0
        claim = self.__dict__.get(CLAIM)
        if claim is not None and claim.timer() is timer:
            number = id(self)
            owner = tracker.owner_id == number or timer.own(self, claim.source)
            left = claim.length - yielded if yielded >= 0 else -1
            return fetch(doing, original, self, number, id(claim.source), owner, left, first)
        # The length is only worth its 1 µs while a trace is recorded: a span must not begin for a step without a batch.
        left = length(self) - yielded if trace.window is not None and yielded >= 0 else -1
        loader = id(sampler_of(self))
        return fetch(doing, original, self, id(self), loader, False, left, first | INFERRED)

    timed_next.timed_by = timer  # type: ignore[attr-defined]  # how ``claim_iterator`` knows its own
    return timed_next


def patched_iter(timer: FetchTimer, original: Callable[[Any], Any]) -> Any:
    """A replacement for ``DataLoader.__iter__``, where workers start and the loader's settings can be seen."""

    def timed_iter(self: Any) -> Any:
        if timer.armed:
            timer.starts_over(self)
        iterator = timer.iterate(original, self, self)
        if timer.marks(self):
            iterator.__dict__[CLAIM] = Claim(weakref.ref(timer), timer.stands_for(self), length(self))
        elif CLAIM in getattr(iterator, "__dict__", ()):
            del iterator.__dict__[CLAIM]  # persistent workers' iterator, which was wrapped in an epoch before
        return iterator

    timed_iter.timed_by = timer  # type: ignore[attr-defined]  # how ``claim`` knows its own
    return timed_iter
