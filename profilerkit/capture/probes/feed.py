"""Where the batches of the training come from while probes may run: the user's loader, or a probe."""

import math
import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, TypeVar

from profilerkit.capture.clocks import ThreadState
from profilerkit.capture.guard import attempt
from profilerkit.capture.loader import FetchTimer
from profilerkit.capture.probes.found import UnprobedError
from profilerkit.capture.probes.replay import Replay

_R = TypeVar("_R")
#: Times as many fetches as a step makes, and this many more: then the loop is not between steps, and would never end.
_MOST_RATIO, _MOST_MORE = 8, 2
#: Steps that are looked back on.
_LOOKED_BACK = 32
#: A loop that fetches further ahead would need copies of as many batches (a choice).
_MOST_AHEAD = 8


@dataclass(slots=True)
class _Iterator:
    """What a loader is iterated by.

    Attributes:
        number: ``id`` of it.
        kind: its type.
        ref: to it; ``None`` where it cannot be referred to.
        fetched: batches that it gave.
        steps: that were whole since it began.
        kept: its last batches, oldest first.
        given: of these, over and over.
    """

    number: int
    kind: type
    ref: weakref.ref[Any] | None
    fetched: int = 0
    steps: int = 0
    kept: deque[Replay] = field(default_factory=deque)
    given: int = 0

    @property
    def is_gone(self) -> bool:
        """Whether nobody holds it any more."""
        return self.ref is not None and self.ref() is None

    def is_of(self, one: Any) -> bool:
        """Whether it is this."""
        return self.number == id(one) and (self.ref is None or self.ref() is one)


class Feed:
    """Sees every fetch of the training thread, keeps its batches when asked to, and gives others in their place.

    A loop may hold batches that it fetched ahead. Those are the last ones fetched, in their order, so the last that a
    probe gives are copies of the same: the loop holds then what it held before.

    Attributes:
        aside: called before a batch is fetched inside of a probe that is not for its steps.
        flaw: why the probe's own batches ran out; empty while they do not. A batch at hand takes their place.
        unfed: steps of a probe, the latest in a row, in which not every loader was asked for a batch. One is no sign:
            the fetch behind a list's last batch comes before its step.
    """

    def __init__(self) -> None:
        self.aside: Callable[[], None] = lambda: None
        self.flaw = ""
        self.unfed = 0
        self._gives: Callable[[int], Any] | None = None
        self._keeps = self._follows = False
        self._feeds: dict[int, _Iterator] = {}  # by loader
        self._in_step: dict[int, int] = {}  # batches of the open step by loader
        self._is_plain = True  # no iterator began or ended in it
        self._was_plain = False
        self._recent: deque[dict[int, int]] = deque(maxlen=_LOOKED_BACK)  # of plain steps before
        self._regular: dict[int, int] = {}
        self._most: dict[int, int] = {}  # batches to keep
        self._number = 0

    @property
    def iterator(self) -> Any:
        """What feeds the steps; ``None`` where it is gone, or cannot be referred to."""
        feed = self._newest
        return feed.ref() if feed is not None and feed.ref is not None else None

    @property
    def kind(self) -> type | None:
        """The type of what feeds the steps; ``None`` where nothing does, or another epoch has just begun."""
        return self._newest.kind if self._newest is not None else None

    @property
    def _newest(self) -> _Iterator | None:
        loader = next(iter(self._recent[-1]), None) if self._recent else None
        return self._feeds.get(loader) if loader is not None else None

    def loaders(self) -> int:
        """How many loaders feed the steps.

        Raises:
            UnprobedError: none does, or not each step with as many batches, or those are fetched far ahead.
        """
        if not any(self._recent):
            raise UnprobedError("no loader feeds the steps, so their batches cannot be held back")
        if any(step != self._recent[0] for step in self._recent):
            raise UnprobedError("the loaders do not feed the same number of batches to each step")
        ahead = max((self._ahead(loader) for loader in self._recent[0]), default=0)
        if ahead > _MOST_AHEAD:
            raise UnprobedError(f"the loop fetches {ahead} batches ahead of its steps")
        return len(self._recent[0])

    def step_started(self, number: int) -> None:
        """Step ``number`` starts: what was fetched since the last one fed that one."""
        passed, self._number = number - self._number, number
        if self._gives is not None:
            is_fed = all(self._in_step.get(loader) for loader in self._regular)
            self.unfed = 0 if is_fed else self.unfed + 1
        else:
            self._was_plain = self._is_plain and passed == 1
            self._feeds = {loader: feed for loader, feed in self._feeds.items() if not feed.is_gone}
            if self._was_plain:
                replaced = (self._recent[-1].keys() if self._recent else set()) - self._in_step.keys()
                if replaced and not replaced & self._feeds.keys():
                    self._recent.clear()  # another epoch has another loader
                self._recent.append(self._in_step)
            for feed in self._feeds.values():
                feed.steps += passed
        self._in_step, self._is_plain = {}, True

    def keep(self) -> None:
        """Keep the batches that come next, as many as the loop is ahead and one at least."""
        self._regular = dict(self._recent[-1]) if self._recent else {}
        self._most = {loader: max(self._ahead(loader), 1) for loader in self._regular}
        for loader, most in self._most.items():
            if loader in self._feeds:
                self._feeds[loader].kept = deque(maxlen=most)
        self._keeps = True

    @property
    def has_kept(self) -> bool:
        """Whether as many are kept, and the step before was one like all others."""
        feeds = [self._feeds.get(loader) for loader in self._regular]
        is_full = all(feed is not None and len(feed.kept) == feed.kept.maxlen for feed in feeds)
        return is_full and self._was_plain and bool(self._recent) and self._recent[-1] == self._regular

    @property
    def round(self) -> int:
        """Steps after which the loop holds what it held before; 0 where it fetches nothing ahead."""
        if not any(self._ahead(loader) > 0 for loader in self._regular):
            return 0
        kept = {loader: len(self._feeds[loader].kept) for loader in self._regular}
        return math.lcm(*(kept[loader] // math.gcd(kept[loader], each) for loader, each in self._regular.items()))

    def replay(self) -> None:
        """From now on give the kept batches, over and over."""
        self._keeps = False
        for loader in self._regular:
            self._feeds[loader].given = 0
        if self._gives is None:
            self.flaw, self.unfed = "", 0
        self._gives = self._replayed

    def give(self, batch: Callable[[], Any]) -> None:
        """From now on give these; a kept batch where there are none."""
        self._gives = lambda loader: self._made(batch, loader)

    def follow(self) -> None:
        """Until the end of the probe give batches to whatever the loop goes on with, but for its evaluations."""
        self._follows = True

    def stop(self) -> None:
        """Give what the user's loader gives."""
        self._gives, self._keeps, self._follows = None, False, False
        for feed in self._feeds.values():
            feed.kept.clear()

    def fetch(self, trains: bool, loader: int, pull: Callable[[Any], _R], of: Any) -> _R:
        """The batch for this fetch; ``trains`` says that it may be for the training."""
        if self._gives is not None:
            known = self._known(loader, of) if trains else None
            if known is not None:
                asked_for = self._in_step[known] = self._in_step.get(known, 0) + 1
                if asked_for <= _MOST_RATIO * self._regular[known] + _MOST_MORE:
                    batch: _R = self._gives(known)
                    return batch
            self.aside()
            return pull(of)
        return self._pulled(loader, pull, of) if trains else pull(of)

    def _known(self, loader: int, of: Any) -> int | None:
        """The loader of those that feed the steps whose batches ``of`` gets; ``None`` where it gets its own."""
        if loader in self._regular and self._feeds[loader].is_of(of):
            return loader
        if self._follows and sys.modules["torch"].is_grad_enabled():
            return loader if loader in self._regular else next(iter(self._regular))
        return None

    def _pulled(self, loader: int, pull: Callable[[Any], _R], of: Any) -> _R:
        feed = self._feeds.get(loader)
        if feed is None or not feed.is_of(of):
            feed = _Iterator(id(of), type(of), attempt(weakref.ref, of), kept=deque(maxlen=self._most.get(loader, 1)))
            self._feeds[loader] = feed
            self._is_plain = False
        is_over = True
        try:
            batch = pull(of)
            is_over = False
        finally:
            if is_over:
                self._feeds.pop(loader, None)
                self._is_plain = False
        feed.fetched += 1
        self._in_step[loader] = self._in_step.get(loader, 0) + 1
        if self._keeps and loader in self._regular:
            self._keep(feed, batch)
        return batch

    def _ahead(self, loader: int) -> int:
        """Batches that the loop has fetched and not trained on."""
        feed = self._feeds.get(loader)
        return 0 if feed is None or not self._recent else feed.fetched - feed.steps * self._recent[-1].get(loader, 0)

    def _keep(self, feed: _Iterator, batch: Any) -> None:
        kept = attempt(Replay, batch)
        if kept is None:
            feed.kept.clear()
        else:
            feed.kept.append(kept)

    def _replayed(self, loader: int) -> Any:
        feed = self._feeds[loader]
        feed.given += 1
        return feed.kept[(feed.given - 1) % len(feed.kept)].again()

    def _made(self, batch: Callable[[], Any], loader: int) -> Any:
        made = None if self.flaw else attempt(lambda: (batch(),))
        if made is None:
            self.flaw = self.flaw or "the second loader failed"
            return self._replayed(loader)
        return made[0]


class ProbedTimer(FetchTimer):
    """A fetch timer whose batches may come from a probe.

    Attributes:
        feed: ``None`` once there is nothing left to probe.
        held: the loader that was wrapped last, which a loop may hold by its iterator alone; ``None`` in the end.
    """

    __slots__ = ("feed", "held")

    feed: Feed | None
    held: Any

    def claim(self, loader: Any) -> bool:
        """Keep what a second loader would be made from."""
        if self.feed is not None:
            self.held = loader
        return super().claim(loader)

    def fetch(
        self,
        doing: ThreadState,
        pull: Callable[[Any], _R],
        of: Any,
        iterator: int,
        loader: int,
        owner: bool,
        left: int,
        flags: int,
    ) -> _R:
        """The next batch, of the loader or of a probe, timed as any other."""
        feed = self.feed
        if feed is None or get_ident() != self.tracker.thread:
            return super().fetch(doing, pull, of, iterator, loader, owner, left, flags)

        def given(source: Any) -> _R:
            return feed.fetch(owner or not doing.phases, loader, pull, source)

        return super().fetch(doing, given, of, iterator, loader, owner, left, flags)

    def _enter_fast_path(self, of: Any, iterator: int, owner: bool, flags: int, fetches: int) -> None:
        """Not while there is something to probe: every fetch is to be seen."""
        if self.feed is None:
            super()._enter_fast_path(of, iterator, owner, flags, fetches)


def ahead(iterator: Any) -> tuple[int, int] | None:
    """Batches of a torch iterator that are ready, and all that are ready or being made; ``None`` without workers."""
    tasks = getattr(iterator, "_task_info", None)
    waiting = None if tasks is None else attempt(iterator._data_queue.qsize)  # macOS does not tell
    return (
        None if tasks is None or waiting is None else (waiting + len(tasks) - iterator._tasks_outstanding, len(tasks))
    )
