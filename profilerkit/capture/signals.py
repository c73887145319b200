"""Tells what a handler of a signal raised, wherever it came, from what the code raised that it came in."""

import signal
from types import CodeType
from typing import Any


def raised_by_handler(error: BaseException) -> bool:
    """Whether ``error`` comes out of a handler of the program's: then it is for the program, wherever it came."""
    trace = error.__traceback__
    codes = {code for code in map(_code, map(signal.getsignal, signal.valid_signals())) if code is not None}
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    """What a handler runs: a function, a method, or an object that is called; ``None`` for none in Python."""
    if not callable(handler):
        return None
    called = getattr(handler, "func", handler)  # of functools.partial
    code = getattr(called, "__code__", None) or getattr(called.__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
