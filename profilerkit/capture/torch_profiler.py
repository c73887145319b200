"""Use torch's profiler: start and free sessions, give way to other profilers, look at exports, mind memory and CUPTI.

torch reports success for files that it never wrote. NVIDIA's devices are traced by CUPTI.
"""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

from profilerkit.capture.cgroup import FreeMemory
from profilerkit.capture.patches import Patches
from profilerkit.capture.proc_files import ProcFiles, number
from profilerkit.rundir.layout import NoKernels
from profilerkit.units import format_bytes

_STEP_MARK = b"ProfilerStep#"
#: How torch writes what a device computed; copies and memsets are of other categories.
_KERNEL_MARK = b'"cat": "kernel"'
#: 30 MB are searched in 15 ms by chunks of this size.
_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 64
_FULL_DISK = "the disk may be full"


@dataclass(frozen=True, slots=True)
class Export:
    """What an exported file holds.

    Attributes:
        flaw: what makes it unusable; empty when nothing does.
        size_bytes: 0 without a file.
        marks: step marks; 0 in an unusable file.
        kernels: what devices computed.
    """

    flaw: str
    size_bytes: int = 0
    marks: int = 0
    kernels: int = 0


def examine(path: Path) -> Export:
    """Size, end, step marks and kernels of an exported trace, found without parsing it."""
    size = path.stat().st_size if path.is_file() else 0
    if not size:
        return Export(f"torch wrote no trace file; {_FULL_DISK}")
    with path.open("rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        if not file.read().rstrip().endswith(b"}"):
            return Export(f"the trace file is cut; {_FULL_DISK}", size)
        file.seek(0)
        marks = kernels = 0
        kept = b""
        while chunk := file.read(_CHUNK_BYTES):
            text = kept + chunk
            marks += text.count(_STEP_MARK)
            kernels += text.count(_KERNEL_MARK)
            kept = _unfinished(text)
    if not marks:
        return Export("the trace holds no step; another profiler may have run inside the window", size)
    return Export("", size, marks, kernels)


def _unfinished(text: bytes) -> bytes:
    """The end of ``text`` that may be the beginning of a mark, and holds none."""
    longest = max(len(_STEP_MARK), len(_KERNEL_MARK)) - 1
    tail = text[-longest:]
    for mark in (_STEP_MARK, _KERNEL_MARK):
        tail = tail[tail.rfind(mark) + len(mark) :] if mark in tail else tail
    return tail


def before_other_profilers(give_way: Callable[[], None]) -> Patches:
    """Have ``give_way`` called before another profiler prepares itself, until the patches are removed.

    torch has one profiler session per process: a second one takes the first one's events, and exporting the first then
    crashes the process (torch 2.13, CPU). So our window must be closed before the other session begins. Every way into
    a session, old and new, goes through ``_prepare_trace``.
    """
    patches = Patches()

    def patched(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def prepare(profiler: Any) -> Any:
            if patches.armed:
                give_way()
            return original(profiler)

        return prepare

    patches.apply(lambda _: patches.patch(sys.modules["torch"].autograd.profiler.profile, "_prepare_trace", patched))
    return patches


#: What the end of a trace takes of what recording it took: 5.4 times for operators with their shapes, 13 times for the
#: names of Python's functions (two programs of 10 traced steps on a CPU, torch 2.13).
_TIMES = 10
#: Of the memory that is free (a choice) …
_MOST_RATIO = 0.25
#: … and where one step only was seen, whose growth may as well be the program's: the next one may double it.
_MOST_OF_ONE_RATIO = 0.5


class TraceMemory:
    """The memory that a trace takes of this process, and what its host has, from where recording begins.

    A trace grows by about as much in every few steps; the program's own memory grows in some, as with a longer
    sequence. So steps count by blocks, about as long as there are many, and each as the middle one does, of two as the
    one that grew less.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = ProcFiles(root)
        self._statm = self._files.open("proc/self/statm")
        self._free = FreeMemory(self._files)
        self._resident_bytes = [self._resident_now()]  # as each step began

    def lacks(self) -> str:
        """Why recording should end with the step that ends; empty while it need not, and where that is not known."""
        self._resident_bytes.append(self._resident_now())
        resident = [value for value in self._resident_bytes if value is not None]
        room, steps = self._free.now_bytes(), len(resident) - 1
        if steps < 1 or room is None:
            return ""
        block = isqrt(steps)
        grown = sorted(resident[at] - resident[at - block] for at in range(block, steps + 1, block))
        needed = _TIMES * steps * grown[(len(grown) - 1) // 2] // block
        if needed <= (_MOST_RATIO if steps > 1 else _MOST_OF_ONE_RATIO) * room:
            return ""
        return f"its trace needs up to {format_bytes(needed)} of memory, and {format_bytes(room)} are free"

    def close(self) -> None:
        """Close what was opened."""
        self._files.close()

    def _resident_now(self) -> int | None:
        """Resident memory of this process."""
        pages = number([*self._statm.text().split(), "", ""][1])
        return None if pages is None else pages * os.sysconf("SC_PAGE_SIZE")


_TEARDOWN, _NO_REINIT = "TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"
#: Before it CUDA graphs crash in the second session after a teardown (pytorch#112507, #151124, kineto#1264).
_SAFE_SINCE = (12, 6)
_DRIVER = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
_KERNEL = Path("/proc/sys/kernel/osrelease")
#: The bit of CAP_SYS_ADMIN in a set of capabilities (linux/capability.h).
_SYS_ADMIN = 21
#: What has the driver load a tool into the process, as Nsight does: CUPTI serves one tool at a time.
_INJECTS = "CUDA_INJECTION64_PATH"


def have_cupti_taken_down(torch: Any) -> None:
    """Have torch take CUPTI down with a session: what stays costs 10 to 20 % of the steps after it (pytorch#144455).

    Only with CUDA 12.6 or newer, and where the environment says nothing of it. It stays set: kineto reads it as a
    session starts, as it ends, and once more on a thread of its own after that. A later session of the user's, too, has
    to start CUPTI anew.
    """
    if _TEARDOWN not in os.environ and _NO_REINIT not in os.environ and _cuda_version(torch) >= _SAFE_SINCE:
        os.environ[_TEARDOWN] = "1"


def cupti_is_taken_down() -> bool:
    """Return whether CUPTI is taken down at the end of sessions, as far as the environment says."""
    return os.environ.get(_TEARDOWN) == "1"


def why_no_kernels() -> NoKernels:
    """Return the likeliest reason why a trace shows nothing of a device; ``unknown`` where nothing points to one.

    Kineto prints CUPTI's own words, but on stderr and with lines for every session, which are switched off.
    """
    torch = sys.modules["torch"]
    if torch.profiler.ProfilerActivity.CUDA not in torch.profiler.supported_activities():
        return "not_built"
    if os.environ.get(_INJECTS):
        return "other_tool"
    if _value(_DRIVER, "RmProfilingAdminOnly") == "1" and not _is_admin():
        return "permission"
    return "wsl" if "microsoft" in _text(_KERNEL).lower() else "unknown"


def _cuda_version(torch: Any) -> tuple[int, ...]:
    """Return the version of the CUDA that torch was built with, ``(0,)`` for ROCm and the CPU.

    >>> from types import SimpleNamespace as Named
    >>> _cuda_version(Named(version=Named(cuda="12.8"))), _cuda_version(Named(version=Named(cuda=None)))
    ((12, 8), (0,))
    """
    with suppress(ValueError):
        return tuple(int(part) for part in str(torch.version.cuda or 0).split(".")[:2])
    return (0,)


def _is_admin() -> bool:
    with suppress(ValueError):
        return bool(int(_value(_STATUS, "CapEff"), 16) >> _SYS_ADMIN & 1)
    return False


def _value(path: Path, name: str) -> str:
    """Return the value of ``name`` in a file of lines such as ``name: value``; empty where it has none."""
    pairs = (line.partition(":") for line in _text(path).splitlines())
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text("utf-8", errors="replace")
    return ""


_COMPILER = "_inductor"


class Span:
    """A named span that ends with the block it is around, or with the session if that is over first."""

    def __init__(self, inner: AbstractContextManager[object], among: list["Span"]) -> None:
        self._inner = inner
        self._among = among

    def __enter__(self) -> None:
        self._inner.__enter__()
        self._among.append(self)

    def __exit__(self, *_error: object) -> None:
        if self in self._among:
            self.end()

    def end(self) -> None:
        """End it now."""
        self._among.remove(self)
        self._inner.__exit__(None, None, None)


def prepare(torch: Any, profiler: Any) -> None:
    """Prepare a session without importing torch's compiler: torch 2.13 asks it for CUDA graphs, 821 modules in 1 s.

    A program that has not imported it has none of them.
    """
    lazy: set[str | None] = getattr(torch, "_lazy_modules", set())
    hides = _COMPILER in lazy and f"torch.{_COMPILER}" not in sys.modules
    lazy.discard(_COMPILER if hides else None)
    try:
        profiler.prepare_trace()
    finally:
        lazy.update([_COMPILER] if hides else ())


def free(profiler: Any) -> None:
    """Let go of what was traced: it is in a cycle, and freeing it took a collection 0.1 s amid a step of the user's."""
    profiler.profiler = None


def printable(name: str) -> str:
    """``name`` in characters that torch writes into a trace as they are: it neither escapes nor keeps all others."""
    return "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "_" for c in name)
