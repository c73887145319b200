"""The dossier of a rank that ran out of memory: what was asked for, what is left, and what would have fitted."""

import os
import re
import resource
import sys
from pathlib import Path
from typing import Any, Literal

from profilerkit.capture import environment
from profilerkit.capture.guard import asked
from profilerkit.capture.live import LiveMemory, live_memory
from profilerkit.capture.secrets import masked
from profilerkit.model.oom import LiveBytes, OutOfMemory
from profilerkit.rundir.process import memory_group

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
#: Version 1 of control groups writes "no limit" as the largest multiple of a page that fits into 63 bits.
_NO_LIMIT = 1 << 62

_Limit = Literal["device", "host", "control group", "address space"]


def dossier(error: Exception, *, steps: int, loader: Any) -> OutOfMemory | None:
    """What the memory holds now; ``None`` for an ``error`` that is not about memory. Nothing is kept alive by it.

    Call it on the training thread while ``error`` is on its way: its traceback holds what was live in the functions
    that it leaves.
    """
    torch = sys.modules.get("torch")
    text = asked(str, error) or ""
    if not _is_about_memory(error, text, torch):
        return None
    settings = environment.loader_settings(loader)
    on_device = _is_of_a_device(error, text, torch)
    known = OutOfMemory(
        device="host",
        message=masked(next(iter(text.splitlines()), "") or type(error).__name__)[:_LONGEST_MESSAGE],
        requested_bytes=_requested(text),
        step=steps,
        batch_size=settings.batch_size if settings else None,
    )
    found = asked(_of_device, known, text, torch) if on_device else asked(_of_host, known, torch)
    return found or known


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


def _of_device(known: OutOfMemory, text: str, torch: Any) -> OutOfMemory:
    cuda = torch.cuda
    match = _GPU.search(text)
    index = int(match[1]) if match else int(cuda.current_device())
    free, total = asked(cuda.mem_get_info, index) or (None, None)
    allocated, reserved = int(cuda.memory_allocated(index)), int(cuda.memory_reserved(index))
    live = asked(live_memory, torch, "cuda", index)
    return _filled(known, f"cuda:{index}", live, allocated, free, total, "device", reserved)


def _of_host(known: OutOfMemory, torch: Any) -> OutOfMemory:
    held, limit, free, total = _tightest()
    live = asked(live_memory, torch, "cpu", None) if torch is not None else None
    return _filled(known, "host", live, held, free, total, limit, None)


def _tightest() -> tuple[int, _Limit, int, int]:
    """What this process holds, and of the limits of its memory the tightest: its name, what is free of it, its size."""
    import psutil

    page_bytes = os.sysconf("SC_PAGE_SIZE")
    virtual, resident = (int(pages) * page_bytes for pages in _words("/proc/self/statm")[:2])
    memory = psutil.virtual_memory()
    limits: list[tuple[int, _Limit, int, int]] = [(int(memory.available), "host", resident, int(memory.total))]
    group = memory_group()
    for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        numbers = [word for name in (most, used) for word in _words(str(group / name)) if word.isdecimal()]
        if len(numbers) == 2 and int(numbers[0]) < _NO_LIMIT:
            size, taken = map(int, numbers)
            limits.append((size - taken + _idle_cache(group), "control group", resident, size))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append((soft - virtual, "address space", virtual, soft))
    free, limit, held, total = min(limits)
    return held, limit, max(free, 0), total


def _idle_cache(group: Path) -> int:
    """Bytes of files that count as used by the group, and that the kernel drops before it kills anybody."""
    words = _words(str(group / "memory.stat"))
    counted = dict(zip(words[::2], words[1::2], strict=False))
    return int(counted.get("total_inactive_file") or counted.get("inactive_file") or 0)


def _words(path: str) -> list[str]:
    try:
        return Path(path).read_text("ascii").split()
    except OSError:
        return []


def _filled(
    known: OutOfMemory,
    device: str,
    live: LiveMemory | None,
    held: int,
    free: int | None,
    total: int | None,
    limit: _Limit,
    reserved: int | None,
) -> OutOfMemory:
    import msgspec

    kinds = live.kinds if live is not None else ()
    unseen = held - sum(kind.bytes for kind in kinds)
    rest = (LiveBytes(kind="unseen", bytes=unseen),) if live is not None and unseen > 0 else ()
    fixed = sum(kind.bytes for kind in kinds if kind.kind in _FIXED)
    fits = None
    if live is not None and live.complete and free is not None:
        fits = fitting(known.batch_size, fixed, held, (reserved or held) + free, known.requested_bytes)
    return msgspec.structs.replace(
        known,
        device=device,
        live=tuple(sorted((*kinds, *rest), key=lambda kind: -kind.bytes)),
        largest=live.largest if live is not None else (),
        complete=live is not None and live.complete,
        free_bytes=free,
        total_bytes=total,
        allocated_bytes=held,
        reserved_bytes=reserved,
        limit=limit,
        fitting_batch_size=fits,
    )


def fitting(batch: int | None, fixed: int, held: int, capacity: int, requested: int | None) -> int | None:
    """The largest batch for which there may be room; ``None`` where that cannot be said.

    Of ``held`` bytes ``fixed`` stay and the rest, with what was ``requested``, is proportional to the batch. Of a batch
    of 32 that needs 2 GB + 32 × 0.25 GB where 8 GB can be had, 24 fit:

    >>> fitting(32, fixed=2, held=8, capacity=8, requested=2)
    24

    Where the room would do, it was in pieces; where not even one sample fits, the request was not about the batch.
    """
    if batch is None or requested is None or capacity <= fixed:
        return None
    fits = batch * (capacity - fixed) // (held - fixed + requested)
    return fits if 1 <= fits < batch else None
