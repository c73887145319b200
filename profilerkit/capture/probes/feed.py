"""Where the batches of the training come from while probes may run: the user's loader, or a probe."""

import weakref
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

from profilerkit.capture.guard import asked
from profilerkit.capture.loader import Doing, FetchTimer
from profilerkit.capture.probes.replay import Replay

_R = TypeVar("_R")
#: Times as many fetches as a step makes, and this many more: then the loop is not between steps, and would never end.
_MOST_RATIO, _MOST_MORE = 2, 2
#: Steps that are looked back on, and the share of them that a loader has to feed to be one of the training's.
_LOOKED_BACK, _MOST_STEPS = 16, 0.75


class Feed:
    """Sees every fetch of the training thread, keeps its batches when asked to, and gives others in their place.

    Attributes:
        aside: called before another loader's batch is fetched inside of a probe.
        stuck: called when the loop fetches without end inside of one step.
        flaw: why the probe's own batches ran out; empty while they do not. A batch at hand takes their place.
    """

    def __init__(self) -> None:
        self.aside: Callable[[], None] = lambda: None
        self.stuck: Callable[[], None] = lambda: None
        self.flaw = ""
        self._gives: Callable[[int], Any] | None = None
        self._keeps = False
        self._kept: dict[int, Replay] = {}
        self._in_step: dict[int, int] = {}  # fetches of the open step by loader
        self._recent: deque[dict[int, int]] = deque(maxlen=_LOOKED_BACK)  # and of the steps before
        self._regular: dict[int, int] = {}
        self._iterator: weakref.ref[Any] | None = None

    @property
    def iterator(self) -> Any:
        """What fed the newest step; ``None`` where it is gone, or cannot be referred to."""
        return self._iterator() if self._iterator is not None else None

    @property
    def loaders(self) -> int:
        """How many loaders feed the steps."""
        return len(self._feeding())

    def step_started(self) -> None:
        """A step starts: what was fetched since the last one fed that one."""
        if self._gives is None and self._in_step:
            self._recent.append(self._in_step)
        self._in_step = {}

    def keep(self) -> None:
        """Keep the batches that come next."""
        self._keeps, self._kept = True, {}

    def replay(self) -> bool:
        """From now on give the kept batches; ``False`` where not every loader of the last step has one."""
        self._keeps = False
        fed = self._recent[-1] if self._recent else {}
        most = {loader: max(step.get(loader, 0) for step in self._recent) for loader in fed}
        if not fed or not fed.keys() <= self._kept.keys():
            return False
        self._regular = most
        self._gives, self.flaw = self._replayed, ""
        return True

    def give(self, batch: Callable[[], Any]) -> None:
        """From now on give these; a kept batch where there are none."""
        self._gives = lambda loader: self._made(batch, loader)

    def stop(self) -> None:
        """Give what the user's loader gives."""
        self._gives, self._keeps, self._kept = None, False, {}

    def fetch(self, trains: bool, loader: int, pull: Callable[[Any], _R], of: Any) -> _R:
        """The batch for this fetch; ``trains`` says that it may be for the training."""
        if trains:
            self._in_step[loader] = self._in_step.get(loader, 0) + 1
        gives, regular = self._gives, self._regular
        if gives is not None and trains and loader in regular:
            if self._in_step[loader] <= _MOST_RATIO * regular[loader] + _MOST_MORE:
                batch: _R = gives(loader)
                return batch
            self.stuck()
        elif gives is not None:
            self.aside()
        batch = pull(of)
        if trains and self._gives is None:
            self._iterator = asked(weakref.ref, of)
            if self._keeps:
                self._keep(loader, batch)
        return batch

    def _feeding(self) -> dict[int, int]:
        """The loaders that feed the steps, and the most fetches of each in one."""
        loaders = {loader for step in self._recent for loader in step}
        counts = {loader: [step[loader] for step in self._recent if loader in step] for loader in loaders}
        least = _MOST_STEPS * len(self._recent)
        return {loader: max(found) for loader, found in counts.items() if len(found) >= least}

    def _keep(self, loader: int, batch: Any) -> None:
        kept = asked(Replay, batch)
        if kept is not None:
            self._kept[loader] = kept

    def _replayed(self, loader: int) -> Any:
        return self._kept[loader].again()

    def _made(self, batch: Callable[[], Any], loader: int) -> Any:
        made = None if self.flaw else asked(lambda: (batch(),))
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
        doing: Doing,
        pull: Callable[[Any], _R],
        of: Any,
        iterator: int,
        loader: int,
        owner: bool,
        more: bool,
        flags: int,
    ) -> _R:
        """The next batch, of the loader or of a probe, timed as any other."""
        feed = self.feed
        if feed is None or get_ident() != self.tracker.thread:
            return super().fetch(doing, pull, of, iterator, loader, owner, more, flags)

        def given(source: Any) -> _R:
            return feed.fetch(owner or not doing.phases, loader, pull, source)

        return super().fetch(doing, given, of, iterator, loader, owner, more, flags)


def ahead(iterator: Any) -> tuple[int, int] | None:
    """Batches of a torch iterator that are ready, and all that are ready or being made; ``None`` without workers."""
    tasks = getattr(iterator, "_task_info", None)
    waiting = None if tasks is None else asked(iterator._data_queue.qsize)  # macOS does not tell
    return (
        None if tasks is None or waiting is None else (waiting + len(tasks) - iterator._tasks_outstanding, len(tasks))
    )
