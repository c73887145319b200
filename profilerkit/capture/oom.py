"""The dossier of a rank that ran out of memory: what was asked for, what is left, and what would have fitted."""

import os
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from profilerkit.capture.cgroup import Cgroup
from profilerkit.capture.guard import attempt
from profilerkit.capture.live import LiveMemory, live_memory
from profilerkit.capture.proc_files import ProcFiles
from profilerkit.model.memory import LiveBytes, OutOfMemory
from profilerkit.model.run import Loader
from profilerkit.secrets import masked

#: What torch's allocator for the host, CUDA outside of torch's allocator, and cuBLAS say. torch 2.13.
_TELLING = re.compile(
    r"can't allocate memory: you tried to allocate|not enough memory: you tried to allocate"
    r"|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)
#: ``Tried to allocate 20.00 MiB``, ``you tried to allocate 4096 bytes``, numpy's ``Unable to allocate 7.28 TiB``.
_REQUEST = re.compile(r"allocate (\d+(?:\.\d+)?) ?(bytes|KiB|MiB|GiB|TiB|PiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_GPU = re.compile(r"\bGPU (\d{1,4}) has")
_LONGEST_MESSAGE = 500
#: All that stays when the batch shrinks.
_FIXED = ("parameters", "gradients", "optimizer state", "buffers")
_ROOT = Path("/")

_Limit = Literal["device", "host", "control group", "address space"]


@dataclass(frozen=True, slots=True)
class _Room:
    """The memory that ran out, as ``OutOfMemory`` has it; ``held_bytes`` are what it calls allocated."""

    device: str
    live: LiveMemory | None = None
    held_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    limit: _Limit | None = None


def dossier(error: Exception, *, steps: int, loader: Loader | None) -> OutOfMemory | None:
    """What the memory holds now; ``None`` for an ``error`` that is not about memory. Nothing is kept alive by it.

    Call it on the training thread while ``error`` is on its way: its traceback holds what was live in the functions
    that it leaves.
    """
    torch = sys.modules.get("torch")
    text = attempt(str, error) or ""
    if not _is_about_memory(error, text, torch):
        return None
    if _is_of_a_device(error, text, torch):
        room = attempt(_on_device, text, torch) or _Room("device")
    else:
        room = attempt(_on_host, torch) or _Room("host")
    batch, requested = loader.batch_size if loader else None, _requested(text)
    live = room.live
    return OutOfMemory(
        device=room.device,
        message=masked(next(iter(text.splitlines()), "") or type(error).__name__)[:_LONGEST_MESSAGE],
        requested_bytes=requested,
        step=steps,
        live=_kinds(room),
        largest=live.largest if live is not None else (),
        complete=live is not None and live.complete,
        free_bytes=room.free_bytes,
        total_bytes=room.total_bytes,
        allocated_bytes=room.held_bytes,
        reserved_bytes=room.reserved_bytes,
        limit=room.limit,
        batch_size=batch,
        fitting_batch_size=_fitting(room, batch, requested),
    )


def _kinds(room: _Room) -> tuple[LiveBytes, ...]:
    """What was found, and what is held beside it; largest first."""
    if room.live is None:
        return ()
    kinds = list(room.live.kinds)
    unseen = (room.held_bytes or 0) - sum(kind.bytes for kind in kinds)
    if unseen > 0:
        kinds.append(LiveBytes(kind="unseen", bytes=unseen))
    return tuple(sorted(kinds, key=lambda kind: -kind.bytes))


def _fitting(room: _Room, batch: int | None, requested: int | None) -> int | None:
    live, held, free = room.live, room.held_bytes, room.free_bytes
    if live is None or not live.complete or held is None or free is None or batch is None or requested is None:
        return None
    if live.unallocated_bytes is None:
        return None
    fixed = sum(kind.bytes for kind in live.kinds if kind.kind in _FIXED)
    capacity = (room.reserved_bytes or held) + free - live.unallocated_bytes
    return fitting(batch, fixed, held, capacity, requested)


def _is_about_memory(error: Exception, text: str, torch: Any) -> bool:
    if isinstance(error, MemoryError) or _is_of_a_device(error, text, torch):
        return True
    return isinstance(error, RuntimeError) and _TELLING.search(text) is not None


def _is_of_a_device(error: Exception, text: str, torch: Any) -> bool:
    kind = getattr(torch, "OutOfMemoryError", None)
    if kind is not None and isinstance(error, kind):
        return True
    return isinstance(error, RuntimeError) and ("CUDA error: out of memory" in text or "CUBLAS_STATUS_ALLOC" in text)


def _requested(text: str) -> int | None:
    """The bytes that were asked for.

    >>> _requested("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total"), _requested("")
    (1610612736, None)
    """
    match = _REQUEST.search(text)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


def _on_device(text: str, torch: Any) -> _Room:
    cuda = torch.cuda
    match = _GPU.search(text)
    index = int(match[1]) if match else int(cuda.current_device())
    free, total = attempt(cuda.mem_get_info, index) or (None, None)
    live = attempt(live_memory, torch, "cuda", index)
    held, reserved = int(cuda.memory_allocated(index)), int(cuda.memory_reserved(index))
    return _Room(f"cuda:{index}", live, held, free, total, reserved, "device")


def _on_host(torch: Any) -> _Room:
    held, limit, free, total = _tightest()
    live = attempt(live_memory, torch, "cpu", None) if torch is not None else None
    return _Room("host", live, held, free, total, None, limit)


def _tightest() -> tuple[int, _Limit, int, int]:
    """What this process holds, and of the limits of its memory the tightest: its name, what is free of it, its size."""
    import psutil

    page_bytes = os.sysconf("SC_PAGE_SIZE")
    virtual, resident = (int(pages) * page_bytes for pages in Path("/proc/self/statm").read_text("ascii").split()[:2])
    memory = psutil.virtual_memory()
    limits: list[tuple[int, _Limit, int, int]] = [(int(memory.available), "host", resident, int(memory.total))]
    files = ProcFiles(_ROOT)
    group = Cgroup(files)
    left, size = group.free_bytes(), group.limit_bytes()
    files.close()
    if left is not None and size is not None:
        limits.append((left, "control group", resident, size))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append((soft - virtual, "address space", virtual, soft))
    free, limit, held, total = min(limits)
    return held, limit, max(free, 0), total


def fitting(batch: int, fixed: int, held: int, capacity: int, requested: int) -> int | None:
    """Return the largest batch for which there may be room; ``None`` where that cannot be known.

    ``fixed`` bytes of those ``held`` stay. The rest, with what was ``requested``, is proportional to the batch. The
    ``capacity`` is without what is still to be allocated for any batch. A batch of 32 needs 2 GB + 32 × 0.25 GB here:
    24 fit into 8 GB, and 12 where gradients and state will take 3 GB of them.

    >>> fitting(32, fixed=2, held=8, capacity=8, requested=2), fitting(32, fixed=2, held=8, capacity=8 - 3, requested=2)
    (24, 12)

    Where the room would do, it was in pieces; where not even one sample fits, the request was not about the batch.
    """
    fits = batch * (capacity - fixed) // (held - fixed + requested)
    return fits if 1 <= fits < batch else None
