"""Says at the end of a command of ``profilerkit run`` that nothing was recorded, where that is so."""

import os
import sys

from profilerkit.capture.order import read_order
from profilerkit.cli.console import Console

#: Importing torch alone takes twice this; a command whose children used less did not train in one of them.
_CHILDREN_SECONDS = 0.5


def tell() -> None:
    """Say it at the end of the command's own process, whose order is left, unless a child may have recorded."""
    order = read_order(os.environ)
    if order is None or os.environ.get("RANK", "0") != "0":
        return
    times = os.times()
    if times.children_user + times.children_system > _CHILDREN_SECONDS:
        return
    seen = "torch was not imported"
    if "torch" in sys.modules:
        seen = "no DataLoader was iterated, and there was no backward pass and no optimizer step"
    Console(quiet=order.quiet).note(f"profilerkit: nothing was recorded: {seen}")
