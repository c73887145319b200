"""The order of a probe's steps, each ``yield`` being one of the training's.

First the run's own, until the loader is as far ahead of the loop as it usually is; half of those that are timed; one
whose batch is kept. Then a copy of the state is made and steps are put in: some to settle, the probed ones, for some
probes as many without the change, half of them before and half after, and some that give the loop the batches back
which it had fetched ahead. The state is put back, and the other half of the run's own steps is timed. The user's loader
gives nothing meanwhile, so no batch is lost.

On several ranks each step's collectives meet those of the same step elsewhere. So how many steps are put in is agreed
on before the first one, and nothing that befalls a single rank meanwhile changes the number. A rank that leaves its
loader asks whether all do so in that step, and breaks off with them or not at all. Alone, it gets batches at hand for
whatever it iterates next, and its probe gives nothing; the training goes on from the first batch of that, with equal
weights on all ranks, as if the rank had left its loader right before the probe. What its own code has drawn or counted
while it left stays as it is, but for the generators.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from itertools import pairwise
from time import perf_counter_ns
from typing import Protocol, TypeVar

from profilerkit.capture.distributed import Place, joined
from profilerkit.capture.guard import attempt
from profilerkit.capture.probes.agreement import Agreement, LostError, agreement
from profilerkit.capture.probes.feed import Feed, ahead
from profilerkit.capture.probes.found import Found, UnprobedError, find, trains_in_parallel
from profilerkit.capture.probes.kinds import Probe
from profilerkit.capture.probes.onlookers import Onlookers, when_gone
from profilerkit.capture.probes.parts import Part, own_steps, parts
from profilerkit.capture.probes.state import Snapshot
from profilerkit.capture.probes.threads import check_maker
from profilerkit.rundir.documents import ProbeRun
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.writer import Record

_R = TypeVar("_R")
_Steps = Generator[None, None, _R]
_PROBE = int(EventKind.PROBE)

#: Steps after which is asked whether the loader is as far ahead as before, and how often at most.
_ROUND, _MOST_ROUNDS = 10, 20
#: The loader's workers are waited for until they have nothing left to do, at most so long, s, with looks in between.
_LONGEST_FILL_S, _LOOK_S = 20.0, 0.005
#: More steps in a row that ask for no batch are those of another loop.
_MOST_UNFED = 1
#: Steps that are looked back on for how often an optimizer steps.
_LOOKED_BACK = 128
UNFINISHED = "the loop ended before it was over"
_LEFT = "the loop left its loader in the middle of it"
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
        place: Place,
        stuck: Callable[[str], None],
    ) -> None:
        """``place`` is that of the rank; ``stuck`` ends the probe under way, for the reason that it is given."""
        self._waiting = list(probes)
        self._feed, self._tracker, self._record, self._place, self._stuck = feed, tracker, record, place, stuck
        self._pid = os.getpid()
        self.number = 0
        self.last_ns: int | None = None
        self.worked: deque[bool] = deque(maxlen=_LOOKED_BACK)
        self.inserting = self.holding = False
        self._is_ready: Callable[[], bool] = lambda: True
        self.runs: list[ProbeRun] = []
        self._agreement = Agreement()
        self._left = False  # the loader, alone, in the probe under way

    def steps(self, first: int, is_ready: Callable[[], bool]) -> _Steps[None]:
        """From step ``first`` on every probe, each once all ranks are ready."""
        self._is_ready = is_ready
        while self.number < first:
            yield
        self._leave_out_alone()
        while self._waiting:
            yield from self._made(self._waiting.pop(0))

    def may_break_off(self) -> bool:
        """Whether the loop, which has left its loader, may end the probe here: all ranks have left it in this step."""
        if self._left:
            return False
        try:
            self._agreement.beside(f"left/{self.number}").ask("", _LEFT)
        except LostError:
            self._left = True
            self._feed.follow()
        return not self._left

    def leave_out(self, reason: str) -> None:
        """Make none of the probes that are not begun."""
        self.runs += [ProbeRun(name=probe.name, reason=reason) for probe in self._waiting]
        self._waiting = []

    def _leave_out_alone(self) -> None:
        """Make no probe where the ranks cannot agree on anything."""
        if joined() is None:
            return
        try:
            if not trains_in_parallel():
                raise UnprobedError("several ranks train without DistributedDataParallel")
            self._agreement = agreement(self._place.world_size, self._place.launch_id)
        except UnprobedError as error:
            self.leave_out(str(error))

    def _made(self, probe: Probe) -> _Steps[None]:
        run, is_lost = _Run(probe), False
        try:
            yield  # what was broken off before this was so in the middle of a step
            yield from self._one(run)
        except UnprobedError as error:
            run.reason = str(error)
            is_lost = isinstance(error, LostError)
        finally:
            self._feed.stop()
            self.holding = False
            self.runs.append(run.record())
        if is_lost:
            self.leave_out(run.reason)

    def _one(self, run: "_Run") -> _Steps[None]:
        found = self._agreed(f"what is there for {run.probe.name}", lambda: self._found(run.probe))
        yield from self._level()
        cycle = self._agreed("the cycle", self._cycle)
        self.holding = True
        half = own_steps(cycle, getattr(self._feed.iterator, "_num_workers", 0))
        run.usual = yield from self._timed(half)
        yield from self._kept()
        yield from self._inserted(run, found, cycle)
        run.reason, run.note = self._feed.flaw, "no step after it was timed: the loop ended"
        yield from self._level()
        run.usual += yield from self._timed(half)
        run.note = ""

    def _found(self, probe: Probe) -> Found:
        """What there is to put back, once the probe can be made."""
        loaders = self._feed.loaders()
        found = find(self._feed.iterator)
        probe.check(found, self._feed.iterator)
        check_maker(self._feed.kind, self._feed.iterator)
        if probe.batch is not None and loaders != 1:
            raise UnprobedError(f"{loaders} loaders feed each step")
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

    def _kept(self) -> _Steps[None]:
        """Steps until the batches of the last ones are kept, and an optimizer stepped in the newest."""
        self._feed.keep()
        for _ in range(_MOST_ROUNDS):
            yield
            if not self._any(not (self._feed.has_kept and self.worked[-1])):
                return
        raise UnprobedError("the batches of a step cannot be copied")

    def _inserted(self, run: "_Run", found: Found, cycle: int) -> _Steps[None]:
        """The steps that are put in, and everything as it was after them."""
        probe, first, is_over = run.probe, self.number, False
        sequence = parts(probe, cycle, self._feed.round)
        count = sum(part.steps for part in sequence)
        snapshot = self._agreed(f"{count} steps of {probe.name}, {probe.change}", lambda: self._copied(found))
        start_ns = self._started_ns()
        onlookers = Onlookers(snapshot.restore_state, lambda: self.number)
        self.inserting, self._left, run.reason = True, False, UNFINISHED
        try:
            with ExitStack() as open_here:
                self._feed.aside = onlookers.look
                open_here.enter_context(onlookers)
                open_here.enter_context(when_gone(self._feed.iterator, lambda: self._stuck(UNFINISHED)))
                self._let_fill(run)
                for part in sequence:
                    self._change(run, part)
                    times = yield from self._timed(part.steps)
                    if part.times is not None:
                        getattr(run, part.times).extend(times)
                is_over = True
        finally:
            if os.getpid() == self._pid:  # a forked child has its own copy of this, and nothing to put back
                run.looks = onlookers.looks
                run.steps = (first, max(self.number - is_over, first))
                end_ns = self._started_ns() if is_over else perf_counter_ns()
                self._record((_PROBE, 0, 0, start_ns, max(end_ns - start_ns, 0), first))
                self._put_back(probe, snapshot, first)
        run.flaw = run.flaw or (_LEFT if self._left else "")
        self._agreed("what came of it", run.raise_flaw)

    def _change(self, run: "_Run", part: Part) -> None:
        """Make or undo the change, as ``part`` is to be; the kept batches are given from the first on without it."""
        if not part.is_changed:
            run.try_to(run.probe.undo)
            self._feed.replay()
        elif not run.is_changed:
            run.try_to(run.probe.apply)
            if run.probe.batch is not None:
                self._feed.give(run.probe.batch)
        run.is_changed = part.is_changed

    def _copied(self, found: Found) -> Snapshot:
        check_maker(self._feed.kind, self._feed.iterator)  # again: another epoch may have begun
        snapshot = Snapshot(found)
        self._feed.replay()
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

    def _let_fill(self, run: "_Run") -> None:
        """Wait for the workers of the user's loader: they would compete with the steps that are put in."""
        made = ahead(self._feed.iterator)
        missing = made[1] - made[0] if made is not None else 0
        # One batch comes in the time of a step, or the run would be slower than it is; twice that time in doubt.
        usual_s = max(sum(run.usual) / max(len(run.usual), 1) / 1e9, _LOOK_S)
        deadline = time.monotonic() + min(2 * missing * usual_s, _LONGEST_FILL_S)
        while made is not None and made[0] < made[1] and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            made = ahead(self._feed.iterator)

    def _level(self) -> _Steps[None]:
        """Steps until the loader is not ahead, or no less than some steps before, and no trace window is open."""
        before = None
        for _ in range(_MOST_ROUNDS):
            yield from _count(_ROUND)
            made = ahead(self._feed.iterator)
            falls = made is not None and made[0] > 0 and (before is None or made[0] < before)
            before = made[0] if made is not None else None
            if not self._any(falls or not (self.holding or self._is_ready())):
                return

    def _timed(self, count: int) -> _Steps[list[int]]:
        """The times of whole steps, with what the device has left to do at their end."""
        times: list[int] = []
        _wait_for_device()
        for _ in range(count):
            yield
            if self.inserting and self._feed.unfed > _MOST_UNFED and self.may_break_off():
                raise UnprobedError(UNFINISHED)
            if self.last_ns is not None:
                times.append(self.last_ns)
        if times:
            times[-1] += _wait_for_device()
        return times

    # Several ranks

    def _any(self, here: bool) -> bool:
        """Whether that is so on any rank; all of them have to ask."""
        return bool(self._agreement.ask("yes" if here else "", f"step {self.number}"))

    def _agreed(self, about: str, work: Callable[[], _R]) -> _R:
        """The result of ``work``, where it can be had on all ranks. Raises ``UnprobedError`` where not."""
        done = attempt(lambda: _tried(work)) or UnprobedError("it failed on this rank")
        # The other ranks wait for this one's answer, whatever it fails by.
        reason = str(done) if isinstance(done, UnprobedError) else ""
        told = self._agreement.ask(reason, f"{about}, step {self.number}")
        if isinstance(done, UnprobedError):
            raise done
        if told:
            raise UnprobedError(f"another rank cannot: {told}")
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
        self.flaw = ""
        self.is_changed = False

    def try_to(self, change: Callable[[], None]) -> None:
        """Make the change; what it fails by is kept: the other ranks count on the steps, which go on."""
        done = attempt(_tried, change)
        if not isinstance(done, tuple):
            self.flaw = self.flaw or str(done or "it failed on this rank")

    def raise_flaw(self) -> None:
        """Raise ``UnprobedError`` where it failed."""
        if self.flaw:
            raise UnprobedError(self.flaw)

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


def _wait_for_device() -> int:
    """Time until the device has done everything, ns; none without a device."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    began_ns = perf_counter_ns()
    cuda.synchronize()
    return perf_counter_ns() - began_ns
