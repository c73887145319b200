"""Asks torch's flight recorder which collectives this process issued, at the end of a window or of the run only.

The recorder is on by default (torch 2.13; gloo and NCCL) and keeps the last 2,000 collectives, also past
``destroy_process_group``. Asking for them holds the GIL for 33-48 ms, which is why nobody asks while steps are timed.
"""

import sys
from pathlib import Path
from typing import Any

from profilerkit.capture.patches import Patches
from profilerkit.capture.place import joined
from profilerkit.rundir.documents import flight_of
from profilerkit.rundir.files import write_document

#: The recorder of all back-ends but NCCL, and NCCL's, which only CUDA builds have.
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


def dump(path: Path, since_unix_ns: int = 0) -> str:
    """Write what the recorder holds to ``path``; the reason when there is nothing, else an empty string.

    Args:
        path: of the document; written beside and renamed.
        since_unix_ns: what was issued before does not count.
    """
    bindings: Any = sys.modules.get("torch._C._distributed_c10d")
    if bindings is None:
        return "torch.distributed is not available"
    known = [ask for name in _DUMPS if (ask := getattr(bindings, name, None)) is not None]
    if not known:
        return "this version of torch has no flight recorder"
    found = flight_of([ask() for ask in known], since_unix_ns)
    if not found.entries:
        return "no collective was recorded: there was no process group of several ranks, or TORCH_FR_BUFFER_SIZE is 0"
    try:
        write_document(path, found)
    except OSError as error:
        return f"{path.name} cannot be written: {error.strerror}"
    return ""


class FlightWatch:
    """Dumps the flight recorder when the block ends.

    Attributes:
        joined: rank and size of the process group that was initialised while the block ran, or before.
    """

    name = "flight"
    needs: tuple[str, ...] = ("torch.distributed",)

    def __init__(self, path: Path, since_unix_ns: int) -> None:
        """``path`` is the document's; collectives of before ``since_unix_ns`` are not the block's."""
        self.joined: tuple[int, int] | None = None
        self._path = path
        self._since_unix_ns = since_unix_ns
        self._reason = "it is asked at the end of the block"

    def hang(self, _patches: Patches) -> None:
        """Nothing is patched: torch records by itself."""

    def beat(self) -> None:
        """Look for a process group, which may be gone at the end of the block."""
        if self.joined is None:
            self.joined = joined()

    def close(self) -> None:
        """Write what the recorder holds."""
        self.beat()
        self._reason = dump(self._path, self._since_unix_ns)

    def reason(self) -> str:
        """Why there is no document."""
        return self._reason
