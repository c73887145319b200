"""Training must go on: the one place in capture that catches everything, and says what it caught."""

import functools
import logging
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import TypeVar, TypeVarTuple

_Ts = TypeVarTuple("_Ts")
_R = TypeVar("_R")
_logger = logging.getLogger(__name__)


class Guard:
    """Runs capture's own code beside the user's; the first failure switches ``what`` off, by ``switch_off``."""

    def __init__(self, what: str, switch_off: Callable[[], object] = bool) -> None:
        self._what, self.switch_off = what, switch_off
        self.failure: str | None = None

    def call(self, work: Callable[[*_Ts], _R], *args: *_Ts) -> _R | None:
        """The result of ``work``; ``None`` when it failed. Raises no ``Exception`` but a signal handler's."""
        try:
            return work(*args)
        except Exception as error:  # noqa: BLE001  this is the guard
            self.caught(work, error)
            return None

    def caught(self, work: Callable[..., object], error: Exception) -> None:
        """Record the first failure, one of ``work``, switch capture off and say so once.

        What a signal's handler raised is the program's, and goes on.
        """
        if raised_by_handler(error):
            raise error
        where = getattr(work, "__qualname__", repr(work))
        _log(f"capture failed in {where}", error)
        if self.failure is not None:
            return
        self.failure = f"{type(error).__name__} in {where}: {attempt(str, error)}"
        attempt(self.switch_off)
        announce(f"{self._what} switched itself off, training goes on: {self.failure}")


def attempt(question: Callable[[*_Ts], _R], *args: *_Ts) -> _R | None:
    """What an object of the user's answers; ``None`` when it raises, which is its affair and no failure of capture."""
    try:
        return question(*args)
    except Exception as error:
        if raised_by_handler(error):
            raise
        _log("what was asked raised", error)
        return None


def tried(work: Callable[[*_Ts], _R], *args: *_Ts) -> tuple[_R | None, str]:
    """What ``work`` returns, and in words what it raised instead; empty where it raised nothing."""
    try:
        return work(*args), ""
    except Exception as error:
        if raised_by_handler(error):
            raise
        _log("what was tried raised", error)
        return None, " ".join(f"{type(error).__name__}: {attempt(str, error)}".split())[:300]


def _log(what: str, error: Exception) -> None:
    """Log ``error`` as text: a handler that keeps its records would keep all that is live in its traceback."""
    if _logger.isEnabledFor(logging.DEBUG):
        _logger.debug("%s\n%s", what, "".join(traceback.format_exception(error)))


def announce(message: str) -> None:
    """Warn the user; a filter that turns warnings into errors, or a hook that raises, must not end the training."""
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=_users_level())
    except Exception as error:
        if raised_by_handler(error):
            raise
        _logger.warning("%s", message)


def _users_level() -> int:
    """The ``stacklevel`` of the innermost line that is neither ours nor torch's; the caller's own on our threads."""
    frame, level = sys._getframe(1), 1
    while frame.f_globals.get("__name__", "").partition(".")[0] in ("profilerkit", "torch"):
        if frame.f_back is None:
            return 2
        frame, level = frame.f_back, level + 1
    return 2 if frame.f_globals.get("__name__") == "threading" else level


def raised_by_handler(error: BaseException) -> bool:
    """Whether ``error`` comes out of a handler of the program's: then it is for the program, wherever it came.

    Ask in the function that caught it, whose own frame is not looked at: that would keep its locals, the error's
    traceback among them, until the next garbage collection.
    """
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    codes = {code for code in map(_code, map(signal.getsignal, signal.valid_signals())) if code is not None}
    while trace is not None:
        if trace.tb_frame.f_code in codes or _has_its_caller(trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


def _code(handler: object) -> CodeType | None:
    """What a handler runs: a function, a method, or an object that is called; ``None`` for none in Python."""
    while isinstance(handler, (functools.partial, MethodType)):
        handler = handler.func if isinstance(handler, functools.partial) else handler.__func__
    if isinstance(handler, FunctionType):
        return handler.__code__
    called = next((vars(kind)["__call__"] for kind in type(handler).__mro__ if "__call__" in vars(kind)), None)
    return called.__code__ if isinstance(called, FunctionType) else None


def _has_its_caller(frame: FrameType) -> bool:
    """Whether it was handed the frame that it came in, as Python calls handlers: one may have set another meanwhile."""
    caller = frame.f_back
    handed = [one for value in frame.f_locals.values() for one in (value if type(value) is tuple else (value,))]
    return caller is not None and any(one is caller for one in handed)
