"""Says at the end of a command of ``profilerkit run`` that nothing was recorded, where that is so."""

import atexit
import os
import sys

from profilerkit.capture.order import read_order
from profilerkit.cli.console import Console

#: Importing torch alone takes twice this; a command whose children used less did not train in one of them.
_CHILDREN_SECONDS = 0.5


def tell_at_exit() -> None:
    """Look, when this process ends, whether it was the command itself and an order is left that nobody took."""
    order = read_order(os.environ)
    if order is not None and order.pid == os.getpid() and not order.quiet:
        atexit.register(_tell)


def _tell() -> None:
    order = read_order(os.environ)
    if order is None or order.pid != os.getpid() or os.environ.get("RANK", "0") != "0":
        return
    times = os.times()
    if times.children_user + times.children_system > _CHILDREN_SECONDS:
        return
    seen = "torch was not imported"
    if "torch" in sys.modules:
        seen = "no DataLoader was iterated, and there was no backward pass and no optimizer step"
    Console().note(f"profilerkit: nothing was recorded: {seen}")
