"""Looks at a trace that torch says it exported: it reports success for files that it never wrote."""

from dataclasses import dataclass
from pathlib import Path

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
