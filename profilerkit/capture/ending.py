"""How a program ends: closes what no block closed, and notes what Python does not tell then."""

import atexit
import faulthandler
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NoReturn

from profilerkit.capture.environment import writable
from profilerkit.capture.guard import attempt
from profilerkit.capture.patches import Patches
from profilerkit.rundir.layout import RankEnd
from profilerkit.secrets import masked

_LONGEST_TEXT = 2000
#: ``os._exit`` waits this long for the last records and ``end.json``; a disk that hangs must not hold it.
LEAVE_SECONDS = 2.0

_faults: list[int] = []  #: the file that this process's faulthandler writes into


def note_faults(path: Path) -> None:
    """Have Python's faulthandler say in a file which signal, such as SIGSEGV, ends this process.

    Nothing is done where the program has it on already. Raises ``OSError``.
    """
    if not faulthandler.is_enabled():
        _faults[:] = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)]
        faulthandler.enable(_faults[0], all_threads=False)


def forget_faults() -> None:
    """In a forked child, whose faults are not its parent's end."""
    for file in _faults:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, file, inheritable=False)
        os.close(null)


_GONE = "_profilerkit_gone"  #: the attribute of an exception that holds its ``_Gone``


@dataclass(frozen=True, slots=True)
class ExitCall:
    """The program asked to exit, by ``call``, with this code; ``message`` is what ``sys.exit`` was given instead."""

    call: str
    code: int
    message: str = ""

    def __str__(self) -> str:
        """``sys.exit(3)``, or ``sys.exit(1): no data``."""
        return f"{self.call}({self.code})" + (f": {self.message}" if self.message else "")


def exit_call_of(cause: BaseException | ExitCall | None) -> ExitCall | None:
    """The exit that ``cause`` asks for; ``None`` for another exception."""
    return _leave_with(cause.code) if isinstance(cause, SystemExit) else cause if isinstance(cause, ExitCall) else None


def _leave_with(status: object) -> ExitCall:
    """What ``sys.exit(status)`` makes of it: nothing is 0, a whole number the code, all else is printed and 1."""
    if status is None or isinstance(status, int):
        return ExitCall("sys.exit", int(status or 0))
    return ExitCall("sys.exit", 1, attempt(str, status) or type(status).__name__)


class Exits:
    """Notes by which call the program leaves, where that comes out by no exception: Python forgets it before the end.

    Seen are ``sys.exit``, ``exit`` and ``quit``, and ``os._exit``; not a ``raise SystemExit`` outside of a block, nor a
    ``sys.exit`` that was imported by name before.
    """

    def __init__(self, steps: Callable[[], int], leaving: Callable[[ExitCall], object]) -> None:
        """``steps`` counts those made until now; ``leaving`` has ``LEAVE_SECONDS`` before ``os._exit`` goes on."""
        self._steps = steps
        self._leaving = leaving
        self.patches = Patches()
        self._pid = os.getpid()
        self._earlier = getattr(sys, "last_value", None)  # what Python printed last because nobody caught it
        self._latest: ExitCall | None = None
        self._latest_steps = 0

    def install(self) -> None:
        """Watch both ways to leave."""
        quitter = getattr(sys.modules.get("_sitebuiltins"), "Quitter", None)  # python -S has none
        ways = ((sys, "exit", self._noted), (quitter, "__call__", self._quits), (os, "_exit", self._announced))

        def patch(patches: Patches) -> None:
            for owner, name, make in ways:
                if owner is not None:
                    patches.patch(owner, name, make)

        self.patches.apply(patch)

    def cause(self) -> BaseException | ExitCall | None:
        """What ends the program, at its end: an exception that nobody caught, or a call; ``None`` as planned.

        A call of ``sys.exit`` was caught where a step was made after it, or where code still ran when what it raised
        was gone.
        """
        latest = getattr(sys, "last_value", None)
        error = sys.exc_info()[1] or (latest if latest is not self._earlier else None)
        if error is not None or self._latest_steps != self._steps():
            return error
        return self._latest

    def _noted(self, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def exit(status: Any = None, /) -> NoReturn:  # noqa: A001  it stands for sys.exit
            self._by(status, original, status)

        return _named_as(exit, sys.__name__, "exit")

    def _quits(self, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def quits(quitter: Any, code: Any = None) -> NoReturn:
            self._by(code, original, quitter, code)

        return quits

    def _by(self, status: object, original: Callable[..., NoReturn], *args: object) -> NoReturn:
        """Note the call, unless another thread makes it: that ends itself only. Then let it raise."""
        if not self.patches.armed or threading.current_thread() is not threading.main_thread():
            original(*args)
        latest = self._latest = _leave_with(status)
        self._latest_steps = self._steps()
        try:
            original(*args)
        except SystemExit as error:
            error.__dict__.setdefault(_GONE, _Gone(lambda: self._caught(latest)))
            raise

    def _caught(self, leave: ExitCall) -> None:
        if self._latest is leave:
            self._latest = None

    def _announced(self, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def _exit(status: int) -> NoReturn:
            # A child made by a fork that Python knows nothing of still has the patch, and this number tells.
            if self.patches.armed and os.getpid() == self._pid and isinstance(status, int):
                attempt(self._leave, ExitCall("os._exit", status))
            original(status)

        return _named_as(_exit, os.__name__, "_exit")

    def _leave(self, leave: ExitCall) -> None:
        """Have the end noted by a thread: the caller may hold a lock that it needs, or the disk may hang."""
        thread = threading.Thread(target=attempt, args=(self._leaving, leave), name="profilerkit-leaving", daemon=True)
        thread.start()
        thread.join(LEAVE_SECONDS)


class _Gone:
    """Goes with the exception that carries it, and calls ``caught`` where code still runs then.

    Python, which ends the program by an exception that nobody caught, drops it when the last function has ended.
    """

    def __init__(self, caught: Callable[[], None]) -> None:
        self._caught = caught

    def __reduce__(self) -> tuple[type[object], tuple[()]]:
        return object, ()

    def __del__(self) -> None:
        if sys._getframe().f_back is not None:
            self._caught()


def _named_as(function: Callable[..., NoReturn], module: str, name: str) -> Callable[..., NoReturn]:
    """``function``, which is pickled by that name: another process finds there what it has itself."""
    function.__module__, function.__qualname__ = module, name
    return function


_at_exit: set[tuple[int, Callable[[], object]]] = set()  #: of which process what is called at its end


def at_exit(close: Callable[[], object]) -> None:
    """Call ``close`` when this process ends, if Python still runs then; once, however often this is called."""
    if (os.getpid(), close) in _at_exit:
        return
    _at_exit.add((os.getpid(), close))
    if multiprocessing.parent_process() is None:
        atexit.register(close)
    else:
        # A forked child of multiprocessing leaves by os._exit, which knows nothing of atexit.
        Finalize(None, close, exitpriority=0)


def end_document(
    cause: BaseException | ExitCall | None,
    failure: str | None,
    *,
    steps: int,
    dropped_records: int,
    end_perf_ns: int,
    stopped: str | None,
) -> RankEnd:
    """Return how the recording ended: by the user's exception or exit, by capture's own ``failure``, or as planned."""
    leave = exit_call_of(cause)
    error = cause if isinstance(cause, BaseException) and leave is None else None
    reason = "exit" if leave is not None else "finished" if error is None else "exception"
    reason = "interrupted" if isinstance(error, KeyboardInterrupt) else reason
    return RankEnd(
        reason=reason if failure is None else "switched_off",
        exception=None if error is None else _bounded("".join(traceback.format_exception_only(error)).strip()),
        steps=steps,
        dropped_records=dropped_records,
        end_perf_ns=end_perf_ns,
        switched_off_because=None if failure is None else _bounded(failure),
        left_by=None if leave is None else _bounded(str(leave)),
        exit_code=None if leave is None else leave.code,
        stopped_because=stopped,
        closed_perf_ns=time.perf_counter_ns(),
    )


def _bounded(text: str) -> str:
    return writable(masked(text))[:_LONGEST_TEXT]
