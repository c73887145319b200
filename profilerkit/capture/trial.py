"""Makes changes in a program as ``profilerkit try`` orders, ends it after so many steps, writes what came of them."""

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from profilerkit.capture.changes import make
from profilerkit.capture.changes.making import Changes
from profilerkit.capture.distributed import place as place_of
from profilerkit.capture.ending import at_exit
from profilerkit.capture.guard import attempt, tried
from profilerkit.capture.patches import Patches, uncounted
from profilerkit.capture.session import Session, active
from profilerkit.capture.timed_calls import not_compiled
from profilerkit.rundir.files import write_whole

#: Losses that are kept, and optimizer steps by which rank 0 announces the end: where ranks reduce gradients in each,
#: the others learn of it before they end the next.
_MOST_LOSSES, _AHEAD = 4096, 2
#: A rank that has written its document waits this long for those of the others, so that none loses its peer.
_SECONDS_FOR_OTHERS = 10.0
_STOP = "stop"
_Why = Literal["steps", "time", "program"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What ``profilerkit try`` wants of one run."""

    steps: int  #: the program ends after so many
    changes: Sequence[tuple[str, Any]] = ()  #: settings and their values, see ``changes.SETTINGS``
    seconds: float = math.inf  #: or after so long, counted from its first step
    seed: int = 0  #: of torch, Python's ``random`` and numpy
    out: str = ""  #: directory for a document of each rank; empty where none is wanted


class _EndedError(BaseException):
    """Ends the code of a ``changed`` block; nothing of the program's catches it by name."""


class Trial:
    """One program with changes.

    Attributes:
        ended: what ended it: the ``steps`` or the ``time`` of the order, or the ``program`` itself.
    """

    def __init__(self, order: Order, leave: Callable[[], BaseException]) -> None:
        """``leave`` makes what is raised at the end."""
        self.order = order
        self.ended: _Why = "program"
        self.changes = Changes()
        self._leave = leave
        self._pid = os.getpid()
        self._session: Session | None = None
        self._roots: list[Any] = []
        self._losses: list[float] | None = None
        self._is_in_backward = self._has_started = False
        self._optimizer_steps = 0
        self._began_s = math.inf
        self._stop: tuple[int, _Why] | None = None  # optimizer steps

    def install(self) -> None:
        """Seed, hang in what ends the program, and make the changes."""
        _seed_all(self.order.seed + self._rank)
        self.changes.patches.apply(self._hang_in)
        make(self.changes, self.order.changes)

    @property
    def steps(self) -> int:
        """Steps that have ended: those of the recording, or of an optimizer where nothing records."""
        return self._optimizer_steps if self._session is None else self._session.steps

    @property
    def losses(self) -> list[float]:
        """The roots of the backward passes, in order; reading them waits for the device."""
        if self._losses is None:
            self._losses = [value for root in self._roots if (value := attempt(float, root)) is not None]
            self._roots.clear()
        return self._losses

    def document(self) -> dict[str, Any]:
        """Return what came of the changes and of the run; a loss that is no number is ``None``."""
        applied, refused = self.changes.results()
        losses = [loss if math.isfinite(loss) else None for loss in self.losses]
        return {"applied": applied, "refused": refused, "losses": losses, "ended": self.ended, "steps": self.steps}

    def finish(self) -> None:
        """Write the document of a program that ended by itself, if it trained."""
        if os.getpid() == self._pid and self._losses is None and self._has_started:
            attempt(self._write_document)

    # Where the program is seen

    def _hang_in(self, patches: Patches) -> None:
        torch = sys.modules["torch"]
        data, optim = sys.modules["torch.utils.data.dataloader"], sys.modules["torch.optim.optimizer"]
        patches.patch(data._BaseDataLoaderIter, "__next__", self._ending_next)
        patches.patch(torch.autograd, "_engine_run_backward", self._noting_backward)
        patches.patch(optim.Optimizer, "_optimizer_step_code", self._following)

    def _ending_next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def ending_next(iterator: Any) -> Any:
            self._look()
            return original(iterator)

        return uncounted(ending_next)

    def _noting_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        tensor = sys.modules["torch"].Tensor

        def noting_backward(roots: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_in_backward or not self.changes.patches.armed:
                return original(roots, *args, **kwargs)
            if not self._optimizer_steps:
                self._look()
            is_loss = len(roots) == 1 and type(roots[0]) is tensor and roots[0].numel() == 1
            if is_loss and len(self._roots) < _MOST_LOSSES:
                self._roots.append(roots[0].detach().clone())
            self._is_in_backward = True
            try:
                return original(roots, *args, **kwargs)
            finally:
                self._is_in_backward = False

        return not_compiled(noting_backward)

    def _following(self, original: Callable[..., None]) -> Callable[..., None]:
        """Hang a hook behind all others inside of the first step: whoever counts steps has counted this one then."""
        table, hung = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks, list[bool]()
        after, patches = not_compiled(lambda *_: self._stepped()), self.changes.patches

        def step_code(self: Any) -> None:  # torch.profiler takes the optimizer out of this name, with stacks
            if not hung:
                hung.append(patches.hang(table, after, at_once=True))
            original(self)

        return not_compiled(step_code)

    def _stepped(self) -> None:
        self._optimizer_steps += 1
        self._look()

    # Where it ends

    def _look(self) -> None:
        """End the program if that is due; called where a step may just have ended."""
        if not self.changes.patches.armed or not self._is_of_this_process():
            return
        self._session = active() or self._session
        session = self._session
        if session is not None and not session.is_training_thread:
            return
        self._has_started = True
        if (self.steps or self._optimizer_steps) and self._began_s == math.inf:
            self._began_s = time.monotonic()
        self.changes.stepped(self.steps)
        why: _Why | None = None
        if self.steps >= self.order.steps:
            why = "steps"
        elif time.monotonic() - self._began_s >= self.order.seconds:
            why = "time"
        elif session is not None and session.is_closed:
            why = "program"  # nothing more is recorded
        if self._world_size > 1 and self.order.out and (self._optimizer_steps or why == "time"):
            why = self._agreed(why)
        if why is not None:
            self._end(why)

    def _agreed(self, why: _Why | None) -> _Why | None:
        """Why all ranks end here, as rank 0 decides: after so many optimizer steps, as they may count others unlike."""
        if self._stop is None:
            place = Path(self.order.out, _STOP)
            if not self._rank and why is not None:
                self._stop = (self._optimizer_steps + _AHEAD, why)
                tried(self._write, _STOP, f"{self._stop[0]} {why}")
            elif self._rank and place.exists():
                number, word = place.read_text().split()
                self._stop = (int(number), cast("_Why", word))
        return self._stop[1] if self._stop is not None and self._optimizer_steps >= self._stop[0] else None

    def _is_of_this_process(self) -> bool:
        """Whether this is the process that trains: the one that ordered it, or a rank that it forked before."""
        if os.getpid() == self._pid:
            return True
        if self._has_started or sys.modules["torch.utils.data"].get_worker_info() is not None:
            return False
        self._pid = os.getpid()
        at_exit(self.finish)
        return True

    @property
    def _rank(self) -> int:
        return self._session.place.rank if self._session is not None else place_of(os.environ, 1).rank

    @property
    def _world_size(self) -> int:
        return self._session.place.world_size if self._session is not None else 1

    def _end(self, why: _Why) -> None:
        if self._losses is None:
            self.ended = why
            tried(self._write_document)
            self._wait_for_others()
        raise self._leave()

    def _write_document(self) -> None:
        document = self.document()
        if self.order.out:
            self._write(f"rank_{self._rank:05d}.json", json.dumps(document))

    def _write(self, name: str, text: str) -> None:
        directory = Path(self.order.out)
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / name, text.encode())

    def _wait_for_others(self) -> None:
        deadline = time.monotonic() + _SECONDS_FOR_OTHERS
        while self.order.out and self._world_size > 1 and time.monotonic() < deadline:
            if len(list(Path(self.order.out).glob("rank_*.json"))) >= self._world_size:
                return
            time.sleep(0.02)


def _seed_all(seed: int) -> None:
    """Seed torch, Python and numpy, where that is loaded."""
    random.seed(seed)
    sys.modules["torch"].manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def begin(order: dict[str, Any]) -> None:
    """Make changes in this process, whose torch has just been imported, and end it when they have been tried."""
    trial = Trial(Order(**order), lambda: SystemExit(0))
    trial.install()
    at_exit(trial.finish)


@contextmanager
def changed(order: Order) -> Iterator[Trial]:
    """Make changes while a block runs, end the block as the order says, and undo them; random states, too."""
    trial = Trial(order, _EndedError)
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    states = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices):
        try:
            trial.install()
            yield trial
        except _EndedError:
            pass
        finally:
            trial.changes.patches.remove()
            attempt(trial.document)  # reads the losses; what was refused for want of use is known now
            random.setstate(states[0])
            if numpy:
                numpy.random.set_state(states[1])
