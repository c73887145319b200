"""The order of a probe's steps, each ``yield`` being one of the training's.

First the run's own, until the loader is as far ahead of the loop as it usually is; half of those that are timed; one
whose batch is kept. Then a copy of the state is made and steps are put in: some until the loader's workers have nothing
left to do, the probed ones, and for some probes as many without the change, half of them before and half after. The
state is put back, and the other half of the run's own steps is timed. The user's loader gives nothing meanwhile, so no
batch is lost.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, Protocol, TypeVar

from profilerkit.capture.guard import asked
from profilerkit.capture.place import with_process_group
from profilerkit.capture.probes.feed import Feed, ahead
from profilerkit.capture.probes.found import Found, UnprobedError, find, trains_in_parallel
from profilerkit.capture.probes.kinds import Probe
from profilerkit.capture.probes.onlookers import Onlookers, when_gone
from profilerkit.capture.probes.state import Snapshot
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.probes import ProbeRun
from profilerkit.rundir.writer import Record

_R = TypeVar("_R")
_Steps = Generator[None, None, _R]
_PROBE = int(EventKind.PROBE)

#: Steps that are timed with the change, and of those they are compared with: 10 to 30 tell a few percent (a choice).
STEPS = 20
_HALF = STEPS // 2
#: Steps after which is asked whether the loader is as far ahead as before, and how often at most.
_ROUND, _MOST_ROUNDS = 10, 20
#: Steps after which is asked whether the loader's workers are done, and how often at most.
_FILL_ROUND, _MOST_FILL_ROUNDS = 5, 10
#: Steps after a change inside of a probe that are not timed.
_FIRST_STEPS = 3
#: Steps that are looked back on for how often an optimizer steps.
_LOOKED_BACK = 128
UNFINISHED = "the loop ended before it was over"
NOT_BEGUN = "the loop ended before it"


class Steps(Protocol):
    """What the program asks about the steps.

    Attributes:
        started_ns: when the open step began; ``None`` where none is open.
    """

    @property
    def started_ns(self) -> int | None: ...  # noqa: D102  the class says it


class Program:
    """All probes of one rank, one after the other.

    Attributes:
        number: of the open step.
        last_ns: what the step before it took; ``None`` where that one does not count.
        worked: for each of the latest steps whether an optimizer stepped.
        inserting: the open step is one that a probe put in.
        holding: no trace window may open: steps are timed.
        runs: probes made so far, or given up.
    """

    def __init__(
        self,
        probes: Iterable[Probe],
        feed: Feed,
        tracker: Steps,
        record: Callable[[Record], None],
        *,
        world: int,
        stuck: Callable[[str], None],
    ) -> None:
        """``world`` is how many ranks record; ``stuck`` ends the probe under way, for the reason that it is given."""
        self._waiting = list(probes)
        self._feed, self._tracker, self._record, self._world, self._stuck = feed, tracker, record, world, stuck
        self._pid = os.getpid()
        self.number = 0
        self.last_ns: int | None = None
        self.worked: deque[bool] = deque(maxlen=_LOOKED_BACK)
        self.inserting = self.holding = False
        self._is_ready: Callable[[], bool] = lambda: True
        self.runs: list[ProbeRun] = []

    def steps(self, first: int, is_ready: Callable[[], bool]) -> _Steps[None]:
        """From step ``first`` on every probe, each once all ranks are ready."""
        self._is_ready = is_ready
        while self.number < first:
            yield
        self._leave_out_alone()
        while self._waiting:
            yield from self._made(self._waiting.pop(0))

    def leave_out(self, reason: str) -> None:
        """Make none of the probes that are not begun."""
        self.runs += [ProbeRun(name=probe.name, reason=reason) for probe in self._waiting]
        self._waiting = []

    def _leave_out_alone(self) -> None:
        """Make no probe where the ranks cannot agree on anything."""
        group = with_process_group()
        if group is None or group.get_world_size() < 2:
            return
        reason = "" if trains_in_parallel() else "several ranks train without DistributedDataParallel"
        reason = reason or ("" if group.get_world_size() == self._world else "the other ranks record elsewhere")
        if reason:
            self.leave_out(reason)

    def _made(self, probe: Probe) -> _Steps[None]:
        run = _Run(probe)
        try:
            yield  # what was broken off before this was so in the middle of a step
            yield from self._one(run)
        except UnprobedError as error:
            run.reason = str(error)
        finally:
            self.holding = False
            self.runs.append(run.record())

    def _one(self, run: "_Run") -> _Steps[None]:
        found = self._agreed(lambda: self._found(run.probe))
        yield from self._level(lambda: self._feed.iterator)
        cycle = self._agreed(self._cycle)
        self.holding = True
        half = _whole(_HALF, cycle)
        run.usual = yield from self._timed(half)
        self._feed.keep()
        yield
        while not self.worked[-1]:
            yield
        yield from self._inserted(run, found, cycle)
        run.reason, run.note = self._feed.flaw, "no step after it was timed: the loop ended"
        yield from self._level(lambda: self._feed.iterator)
        run.usual += yield from self._timed(half)
        run.note = ""

    def _found(self, probe: Probe) -> Found:
        """What there is to put back, once the probe can be made."""
        if not self._feed.loaders:
            raise UnprobedError("no loader feeds the steps, so their batches cannot be held back")
        found = find()
        probe.check(found, self._feed.iterator)
        if probe.batch is not None and self._feed.loaders != 1:
            raise UnprobedError(f"{self._feed.loaders} loaders feed each step")
        return found

    def _cycle(self) -> int:
        """After how many steps an optimizer steps: gradients may be accumulated."""
        if not self._is_ready():
            raise UnprobedError("a trace window stayed open")
        at = [number for number, stepped in enumerate(self.worked) if stepped]
        apart = {later - earlier for earlier, later in pairwise(at)}
        if len(apart) != 1:
            raise UnprobedError("no torch.optim optimizer stepped at a regular distance in the steps before")
        return apart.pop()

    def _inserted(self, run: "_Run", found: Found, cycle: int) -> _Steps[None]:
        """The steps that are put in, and everything as it was after them."""
        probe, first, is_over = run.probe, self.number, False
        snapshot = self._agreed(lambda: self._copied(found))
        start_ns = self._started_ns()
        onlookers = Onlookers(snapshot.restore_state, lambda: self.number)
        self.inserting, run.reason = True, UNFINISHED
        try:
            with ExitStack() as open_here:
                self._feed.aside = onlookers.look
                open_here.enter_context(onlookers)
                open_here.enter_context(when_gone(self._feed.iterator, lambda: self._stuck(UNFINISHED)))
                yield from self._probed(run, cycle)
                while (self.number - first) % cycle:
                    yield
                is_over = True
        finally:
            if os.getpid() == self._pid:  # a forked child has its own copy of this, and nothing to put back
                run.looks = onlookers.looks
                run.steps = (first, max(self.number - is_over, first))
                end_ns = self._started_ns() if is_over else perf_counter_ns()
                self._record((_PROBE, 0, 0, start_ns, max(end_ns - start_ns, 0), first))
                self._put_back(probe, snapshot, first)

    def _probed(self, run: "_Run", cycle: int) -> _Steps[None]:
        probe, half = run.probe, _whole(_HALF, cycle)
        if not probe.has_control:
            self._change(probe)
        yield from self._filled()
        if probe.batch is not None:
            yield from self._level(lambda: probe.iterator)
        if probe.has_control:
            run.control = yield from self._timed(half)
            self._change(probe)
            yield from _count(_FIRST_STEPS)
        run.probed = yield from self._timed(_whole(STEPS, cycle))
        if probe.has_control:
            probe.undo()
            yield from _count(_FIRST_STEPS)
            run.control += yield from self._timed(half)

    def _change(self, probe: Probe) -> None:
        probe.apply()
        if probe.batch is not None:
            self._feed.give(probe.batch)

    def _copied(self, found: Found) -> Snapshot:
        snapshot = Snapshot(found)
        if not self._feed.replay():
            raise UnprobedError("the batch of a step cannot be copied")
        return snapshot

    def _put_back(self, probe: Probe, snapshot: Snapshot, first: int) -> None:
        began_ns = perf_counter_ns()
        try:
            probe.undo()
        finally:
            self._feed.stop()
            self.inserting = False
            snapshot.restore()
        made = ahead(self._feed.iterator)
        self._record((_PROBE, 0, made[1] if made else 0, began_ns, perf_counter_ns() - began_ns, first))

    def _started_ns(self) -> int:
        started_ns = self._tracker.started_ns
        return perf_counter_ns() if started_ns is None else started_ns

    def _filled(self) -> _Steps[None]:
        """Steps until the workers of the user's loader have nothing left to do."""
        for _ in range(_MOST_FILL_ROUNDS):
            yield from _count(_FILL_ROUND)
            made = ahead(self._feed.iterator)
            if not self._any(made is not None and made[0] < made[1]):
                return

    def _level(self, iterator: Callable[[], Any]) -> _Steps[None]:
        """Steps until the loader is not ahead, or no less than some steps before, and no trace window is open."""
        before = None
        for _ in range(_MOST_ROUNDS):
            yield from _count(_ROUND)
            made = ahead(iterator())
            falls = made is not None and made[0] > 0 and (before is None or made[0] < before)
            before = made[0] if made is not None else None
            if not self._any(falls or not (self.holding or self._is_ready())):
                return

    def _timed(self, count: int) -> _Steps[list[int]]:
        """The times of whole steps, with what the device has left to do at their end."""
        times: list[int] = []
        _wait_for_device()
        while len(times) < count:
            yield
            if self.last_ns is not None:
                times.append(self.last_ns)
        times[-1] += _wait_for_device()
        return times

    # Several ranks

    def _any(self, here: bool) -> bool:
        """Whether that is so on any rank; all of them have to ask."""
        group = with_process_group() if self._world > 1 else None
        if group is None:
            return here
        torch = sys.modules["torch"]
        answer = torch.tensor([int(here)], device="cuda" if group.get_backend() == "nccl" else "cpu")
        group.all_reduce(answer, op=group.ReduceOp.MAX)
        return bool(answer.item())

    def _agreed(self, work: Callable[[], _R]) -> _R:
        """The result of ``work``, where it can be had on all ranks. Raises ``UnprobedError`` where not."""
        done = asked(lambda: _tried(work)) or UnprobedError("it failed on this rank")
        # The other ranks wait for this one's answer, whatever it fails by.
        if isinstance(done, UnprobedError):
            self._feed.stop()
            self._any(True)
            raise done
        if self._any(False):
            self._feed.stop()
            raise UnprobedError("another rank cannot")
        return done[0]


class _Run:
    """What is known of one probe so far."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.usual: list[int] = []
        self.control: list[int] = []
        self.probed: list[int] = []
        self.steps: tuple[int, int] | None = None
        self.reason = NOT_BEGUN
        self.note = ""
        self.looks = 0

    def record(self) -> ProbeRun:
        """For the run directory."""
        looks = f"the state was put back {self.looks} times inside of it for whoever looked at it" if self.looks else ""
        return ProbeRun(
            name=self.probe.name,
            change=self.probe.change,
            usual_ns=tuple(self.usual),
            control_ns=tuple(self.control),
            probed_ns=tuple(self.probed),
            first_step=self.steps[0] if self.steps else None,
            last_step=self.steps[1] if self.steps else None,
            reason=self.reason,
            note="; ".join(said for said in (looks, self.note) if said),
        )


def _tried(work: Callable[[], _R]) -> tuple[_R] | UnprobedError:
    """What ``work`` gives, or why it cannot."""
    try:
        return (work(),)
    except UnprobedError as error:
        return error


def _count(count: int) -> _Steps[None]:
    for _ in range(count):
        yield


def _whole(count: int, cycle: int) -> int:
    """At least ``count`` steps, in whole cycles."""
    return -(-count // cycle) * cycle


def _wait_for_device() -> int:
    """Time until the device has done everything, ns; none without a device."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    began_ns = perf_counter_ns()
    cuda.synchronize()
    return perf_counter_ns() - began_ns
