"""Decides where steps begin and end, from what the user says or, failing that, from what the loop does.

``step()`` beats a wrapped loader, and a wrapped loader beats inference. Inferred boundaries: a step that fetched a
batch ends when the next fetch starts, provided an optimizer stepped in between (gradient accumulation, several
optimizers and fetching ahead all come out as one step). Iterations of another wrapped loader than before are steps from
the first that trains, so that an evaluation's are none. A step without a fetch ends with the optimizer that joined
the loop last: optimizers A and B stepping as A B A B, with backward passes anywhere, are two steps. What repeats is
only known once it repeats: in A A B A A B the first three end a step each, the other three make one. A loop that
never steps a ``torch.optim`` optimizer is cut by its backward passes instead.
"""

import threading
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple, Protocol

from profilerkit.rundir.layout import BY_STEP_CALLS, BY_WRAPPED_LOADER, EventFlag, EventKind
from profilerkit.rundir.writer import Record

_STEP, _INFERRED = int(EventKind.STEP), int(EventFlag.INFERRED)  # an enum lookup costs 0.2 µs on Python 3.11
#: Iterations of a wrapped loader are held back while step() may still come: so long without an optimizer step when
#: backward passes were seen (gradients are accumulating), and when none were (not a torch training loop).
_HELD_ACCUMULATING, _HELD_PLAIN = 256, 4
_BACKWARDS_ALONE = 8  #: backward passes without any optimizer step after which backward passes end inferred steps
#: Optimizer steps behind the end of a loader after which there is none: one or two may follow an epoch.
_STEPS_ALONE = 8
NEVER = 1 << 62


class Quiet(NamedTuple):
    """What an observer need not be told at once."""

    until: int  #: the step whose start is told; the starts of those before are not told at all
    longest_ns: int  #: the end of a step that took longer is told at once; of ``steps`` others later, in their order
    steps: int


_NOBODY = Quiet(NEVER, NEVER, NEVER)  #: where nobody observes


class Observer(Protocol):
    """Follows steps as they happen, as trace windows do."""

    def step_started(self, number: int) -> None:
        """Step ``number`` starts now."""

    def step_ended(self, number: int, dur_ns: int) -> None:
        """Step ``number`` ends now, whole; it took that long."""

    def step_cut(self) -> None:
        """The step that started last will not be counted."""

    def quiet(self) -> Quiet | None:
        """Return what may wait from now on; ``None`` when nothing may."""


#: The optimizer that ended steps is taken to be gone after so many steps of others; a Wasserstein GAN's critic makes 5.
_LONGEST_CYCLE = 64


class OptimizerCycle:
    """The optimizers of a loop, as they repeat.

    >>> cycle = OptimizerCycle()
    >>> [cycle.stepped(optimizer, now_ns) for now_ns, optimizer in enumerate((1, 2, 1, 2))]
    [(), (), (1,), (3,)]
    """

    __slots__ = ("_closing", "_known", "_since_closing", "tentative_ns")

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._closing: int | None = None  # the one of them that joined last
        self.tentative_ns: int | None = None  # where the step ends unless another one joins
        self._since_closing = 0

    def stepped(self, optimizer: int, now_ns: int) -> tuple[int, ...]:
        """Where steps end, now that this optimizer has stepped: here, or there and here, or nowhere yet."""
        self._since_closing += 1
        if optimizer not in self._known or self._since_closing > _LONGEST_CYCLE:
            if optimizer in self._known:
                self._known.clear()
            self._known.add(optimizer)
            self._closing, self.tentative_ns, self._since_closing = optimizer, now_ns, 0
            return ()
        before = () if self.tentative_ns is None else (self.tentative_ns,)
        self.tentative_ns = None
        if optimizer != self._closing:
            return before
        self._since_closing = 0
        return (*before, now_ns)


class StepTracker:
    """Find the steps of one run. ``abandoned``, ``leave_fast_path`` and ``thread_ended`` may be called on any thread.

    Attributes:
        backward_depth: backward passes under way: whoever starts one counts it here, and then calls ``backward_ended``.
        ends_in_backward: optimizers step inside of backward passes, whose ends mark steps.
        on_trained: called once, after the next optimizer step that is asked; without any, after a backward pass.
        marked: something else than optimizers and backward passes ends the open step.
        fast: ``id`` of the iterator whose fetches take the fast path (see ``loader``), up to the end of step number
            ``report_at`` and of one that takes longer than ``report_above_ns``; 0 where none does.
        measured: the same where its next fetch takes the fast path with clocks around it.
        unreported: what the steps took of which the observer is told later; ``None`` where nobody observes.
        feeder: ``id`` of the iterator that gave the open step its first batch.
        mark: marks the device's queue at the end of each step from number ``mark_at`` on, and at both ends of what lies
            between two; takes the last step's number and its start. ``fed_late`` is called after a long wait.
        optimizer_starts: called with an optimizer before it steps, from step number ``optimizer_starts_at`` on.
        marking_ns: what ``mark`` has taken so far; whoever measures what contains it takes that off.
        fast_thread: ``thread`` while its backward passes and optimizer steps need only be recorded; else 0.
    """

    # An attribute in a slot is found with one look at memory; a step of the user's has emptied the caches meanwhile.
    __slots__ = (
        *("__weakref__", "_alone", "_began_aside", "_clock", "_cycle", "_doubted", "_held", "_in_backward"),
        *("_lapsed_ns", "_owner", "_record", "_source", "_window", "backward_depth", "backwards", "count"),
        *("ends_in_backward", "explicit", "fast", "fast_thread", "fed_late", "feeder", "mark", "mark_at", "marked"),
        *("marking_ns", "measured", "on_trained", "optimizer_seen", "optimizer_starts", "optimizer_starts_at"),
        *("owner_id", "report_above_ns", "report_at", "started_ns", "stepping_ns", "thread", "unreported", "worked"),
        "wrapped",
    )

    def __init__(
        self,
        record: Callable[[Record], None],
        window: Observer | None = None,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._record = record
        self._window = window
        self._clock = clock
        self.thread = threading.get_ident()
        self.count = 0
        self.started_ns: int | None = None
        self._lapsed_ns = clock()  # where a step starts when nothing said so: the block, or the step that lapsed
        self.feeder: int | None = None
        self.worked = False  # an optimizer stepped in the open step
        self.explicit = self._began_aside = False
        self.wrapped = self.marked = self.ends_in_backward = self.optimizer_seen = False
        self._owner: weakref.ref[object] | None = None
        self.owner_id = self.fast = self.measured = self.fast_thread = self.stepping_ns = 0
        self.report_at = self.report_above_ns = self.mark_at = self.optimizer_starts_at = NEVER
        self.mark: Callable[[int, int], None] = lambda _number, _start_ns: None
        self.optimizer_starts: Callable[[object], None] = lambda _optimizer: None
        self.fed_late: Callable[[int], None] = lambda _wait_ns: None
        self.unreported: list[int] | None = None
        self._source: Callable[[], object] = lambda: None
        self._held: list[tuple[int, int]] | None = []  # None once the wrapped loader is known to mark steps
        self._doubted: int | None = None  # backward passes before another wrapped loader, which may train nothing
        self._cycle = OptimizerCycle()  # of those in steps without a fetch
        self._alone = 0
        self._in_backward = False  # an optimizer stepped inside the backward pass under way
        self.backward_depth = self.backwards = self.marking_ns = 0
        self.on_trained: Callable[[], None] | None = None

    @property
    def found_by(self) -> str:
        """What marks the steps."""
        if self.explicit or self.wrapped:
            return BY_STEP_CALLS if self.explicit else BY_WRAPPED_LOADER
        return "optimizer step" if self.optimizer_seen or not self.backwards else "backward pass"

    def adopt(self, thread: int) -> bool:
        """Whether ``thread`` is the training thread; until a step is recorded, the first that trains becomes it."""
        if thread != self.thread and self.count == 0 and self.started_ns is None:
            self.thread = thread
        return thread == self.thread

    # Fetches

    def own(self, iterator: object, source: object, in_phase: bool = False, aside: bool = False) -> bool:
        """Whether ``iterator`` marks the steps: the first wrapped one alive does, or a new one of the same source.

        In a named phase another source is evaluated, and so is one ``aside``, in an evaluation by its name, unless the
        first steps were made in one.
        """
        if aside and self.wrapped and not self._began_aside:
            return False
        self._began_aside |= aside
        owner = self._owner() if self._owner is not None else None
        if owner is iterator:
            self.owner_id = id(iterator)
            return True
        is_other = self._source() is not source
        if is_other and (owner is not None or (in_phase and self.wrapped)):
            return False
        if is_other and self.wrapped and self._held is None and (self.optimizer_seen or self.backwards):
            self._doubted, self.worked = self.backwards, False
        self._owner = weakref.ref(iterator, self.abandoned)
        self._source = _reference(source)
        self.owner_id = id(iterator)
        self.leave_fast_path()
        self.wrapped = self.marked = True
        return True

    def fetch_started(self, now_ns: int, feeder: int, owner: bool, more: bool = True) -> None:
        """A fetch starts. ``more`` is false when the loader is known to be exhausted: no step starts then."""
        if self.explicit:
            if self.started_ns is None and more:
                self._open(now_ns)
        elif self.wrapped:
            if not owner:
                return
            if self._doubted is not None and (self.worked or self.backwards > self._doubted):
                self._doubted = None  # something has trained on it
            if self._doubted is not None and self.started_ns is not None:
                self.started_ns = now_ns
                return
            if self._held is None:
                self._end(now_ns, 0)
            elif self.started_ns is not None:
                self._iteration_ended(self.started_ns, now_ns)
            if more:
                self._open(now_ns)
        else:
            if self.started_ns is not None and self.worked:
                self._end(now_ns, _INFERRED)
            elif self.started_ns is not None and self.feeder is None:
                self._discard()  # it began without a fetch, and starts here
            if self.started_ns is None and more:
                self._open(now_ns)
        if self.feeder is None:
            self.feeder, self.marked = feeder, True

    def enter_fast_path(self, iterator: int) -> None:
        """Let the next fetches of this iterator be fast, if they feed the steps and the observer does not mind.

        The iterator is one that marks the steps, or that fed the open one.
        """
        self._catch_up()
        self.measured = iterator  # another thread may leave the fast path before this one has entered it
        if self.wrapped and not self.explicit:
            is_known = self._held is None and self._doubted is None and self.owner_id == iterator
        else:
            is_known = self.feeder == iterator and (self.explicit or self.worked or self.count > 0)
        quiet = _NOBODY if self._window is None else self._window.quiet()
        if not is_known or quiet is None:
            self.measured = 0
            return
        self.report_at, self.report_above_ns = min(quiet.until, self.count + quiet.steps) - 1, quiet.longest_ns
        self.unreported = None if self._window is None else []
        self.fast = iterator
        if not self.measured:
            self.fast = 0
        self.measured = 0

    def leave_fast_path(self) -> None:
        """Have the next fetch, backward pass and optimizer step look again at what they are."""
        self.fast = self.measured = self.fast_thread = 0

    def _catch_up(self) -> None:
        """Report the steps that ended on the fast path."""
        if self.unreported and self._window is not None:
            unreported, self.unreported = self.unreported, []
            for number, dur_ns in enumerate(unreported, self.count - len(unreported)):
                self._window.step_ended(number, dur_ns)

    def thread_ended(self) -> None:
        """The calling thread ends: another one may get its number."""
        if threading.get_ident() == self.thread:
            self.leave_fast_path()

    def exhausted(self, feeder: int, owner: bool) -> None:
        """The fetch that just started found the loader empty: the step it began, or left unfinished, does not count."""
        if owner if self.wrapped and not self.explicit else self.feeder == feeder:
            self._discard()

    def abandoned(self, _owner: object = None) -> None:
        """The iterator that marks steps is gone (``break``): its last step counts if it did its work."""
        self.owner_id = 0
        self.leave_fast_path()
        if self.explicit or self.started_ns is None or threading.get_ident() != self.thread:
            return
        if self.worked:
            self._iteration_ended(self.started_ns, self._clock())
        else:
            self._discard()

    def left_behind(self, iterator: object) -> None:
        """A loader that keeps its iterator from epoch to epoch starts over: as if the iterator were gone."""
        if id(iterator) == self.owner_id:
            self.abandoned()

    # The user's word

    def step(self) -> None:
        """The user ends a step."""
        now_ns = self._clock()
        if not self.explicit:
            self.explicit = self.marked = True
            self.leave_fast_path()
            if self._held:
                self.started_ns = self._held[0][0]
            self._held = None
        if self.started_ns is None:
            self.started_ns = self._lapsed_ns
        self._end(now_ns, 0)
        self._open(now_ns)
        if self.count > self.report_at:
            self.leave_fast_path()

    # Optimizers and backward passes

    def optimizer_stepped(self, optimizer: int, now_ns: int) -> None:
        """An optimizer step ended at ``now_ns``."""
        self.optimizer_seen = self.worked = True
        if self.marked and not self._trains_on(now_ns):
            return
        if self.backward_depth:
            self._in_backward = self.ends_in_backward = True
            return
        ends_ns = self._cycle.stepped(optimizer, now_ns)
        for end_ns in ends_ns:
            self._boundary(end_ns)
        self.worked = not ends_ns or ends_ns[-1] != now_ns

    def _trains_on(self, now_ns: int) -> bool:
        """Whether a loop whose last loader has ended goes on without any: what trains ends the steps from now on."""
        if self.started_ns is not None or self.wrapped or self.explicit:
            return False
        self._alone += 1
        self.marked = self._alone < _STEPS_ALONE
        if self.marked:
            self._lapsed_ns = now_ns
        return not self.marked

    def backward_ended(self, now_ns: int) -> None:
        """A backward pass has ended; it ends a step when an optimizer ran inside it, or when there is no optimizer."""
        self.backwards += 1
        if self.backward_depth or (self.optimizer_seen and self.marked):
            return
        alone = not self.optimizer_seen and self.backwards >= _BACKWARDS_ALONE
        self.worked |= alone
        if (alone or self._in_backward) and (not self.marked or self._trains_on(now_ns)):
            self._boundary(now_ns)

    @property
    def is_held_back(self) -> bool:
        """Whether iterations wait for a sign that they are the steps, such as an optimizer's."""
        return self.wrapped and not self.explicit and bool(self._held)

    def close(self) -> None:
        """The block ends: what is whole is recorded, the open step is not."""
        self._commit()
        self._discard()

    def _boundary(self, end_ns: int) -> None:
        if self.started_ns is None:
            self.started_ns = self._lapsed_ns
        self._end(end_ns, _INFERRED)
        self._open(end_ns)

    def _open(self, now_ns: int) -> None:
        self.started_ns, self._alone = now_ns, 0
        self.feeder, self.marked = None, self.wrapped or self.explicit
        self.worked = False
        self._cycle.tentative_ns = None  # where a step ended is no question any more
        self._in_backward = False
        if self.wrapped and self._held is not None and not self.explicit:
            return
        if now_ns != self._lapsed_ns and self.mark_at < NEVER:
            self.mark(self.count - 1, now_ns)
        if self._window is not None:
            self._window.step_started(self.count)

    def _iteration_ended(self, start_ns: int, now_ns: int) -> None:
        """An iteration of the wrapped loader is a step, unless ``step()`` is still to come."""
        if self._held is None:
            self._end(now_ns, 0)
            return
        self._held.append((start_ns, now_ns))
        self.started_ns = None
        limit = _HELD_ACCUMULATING if self.backwards else _HELD_PLAIN
        if self.optimizer_seen or len(self._held) >= limit:
            self._commit()

    def _commit(self) -> None:
        self._catch_up()
        for start_ns, end_ns in self._held or ():
            self._record((_STEP, 0, 0, start_ns, end_ns - start_ns, self.count))
            self.count += 1
        self._held = None

    def _end(self, now_ns: int, flags: int) -> None:
        start_ns = self.started_ns
        if start_ns is None:
            return
        self._record((_STEP, flags, 0, start_ns, now_ns - start_ns, self.count))
        self.started_ns = None
        self._lapsed_ns = now_ns
        if self.count >= self.mark_at:
            self.mark(self.count, start_ns)
        if self._window is not None:
            self._catch_up()
            self._window.step_ended(self.count, now_ns - start_ns)
        self.count += 1

    def _discard(self) -> None:
        if self.started_ns is not None:
            self._lapsed_ns = self.started_ns
            self.started_ns = None
            self.leave_fast_path()
            if self.mark_at < NEVER:
                self.mark(self.count - 1, self._lapsed_ns)
            if self._window is not None:
                self._catch_up()
                self._window.step_cut()


def _reference(source: object) -> Callable[[], object]:
    """Return what gives ``source`` while it is there: the next one may get its place in memory."""
    try:
        return weakref.ref(source)
    except TypeError:
        return lambda: source
