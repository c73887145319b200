"""Takes CUPTI down after a window, and finds why its trace shows no kernel; torch traces NVIDIA's devices by CUPTI."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from profilerkit.rundir.layout import NoKernels

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


def have_it_taken_down(torch: Any) -> None:
    """Have torch take CUPTI down with a session: what stays costs 10 to 20 % of the steps after it (pytorch#144455).

    Only with CUDA 12.6 or newer, and where the environment says nothing of it. It stays set: kineto reads it as a
    session starts, as it ends, and once more on a thread of its own after that. A later session of the user's, too, has
    to start CUPTI anew.
    """
    if _TEARDOWN not in os.environ and _NO_REINIT not in os.environ and _cuda_version(torch) >= _SAFE_SINCE:
        os.environ[_TEARDOWN] = "1"


def is_taken_down() -> bool:
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
