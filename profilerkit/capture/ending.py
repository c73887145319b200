"""Closes a recording that has no block of its own when its program ends."""

import atexit
import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.util import Finalize


def at_exit(close: Callable[[BaseException | None], object]) -> None:
    """Call ``close`` with the exception that ends the program, if one does, whenever Python still runs then.

    Python does not tell the code of a ``sys.exit`` here: such an end looks as planned.
    """
    earlier = getattr(sys, "last_value", None)

    def ended() -> None:
        latest = getattr(sys, "last_value", None)
        close(sys.exc_info()[1] or (latest if latest is not earlier else None))

    if multiprocessing.parent_process() is None:
        atexit.register(ended)
    else:
        # A forked child of multiprocessing leaves by os._exit, which knows nothing of atexit.
        Finalize(None, ended, exitpriority=0)
