"""Tells what a handler of a signal raised, wherever it came, from what the code raised that it came in."""

import functools
import signal
from types import CodeType, FrameType, FunctionType, MethodType


def raised_by_handler(error: BaseException) -> bool:
    """Whether ``error`` comes out of a handler of the program's: then it is for the program, wherever it came.

    Ask in the function that caught it. That one's own frame is not looked at: the look would keep its locals, the error
    with all that lives in its traceback among them, until the next garbage collection.
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
