"""Where in the model and in the user's code a call was made, from Python stacks."""

import re

import msgspec
import numpy as np

from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.enclosing import innermost_at
from profilerkit.analysis.intervals import I64
from profilerkit.trace.columns import Category, TraceColumns

_MODULE = re.compile(r"^nn\.Module: ")
_LINE = re.compile(r"^(?!nn\.Module: ).*\.py\(\d+\): ")
#: Frames that are nobody's own code: torch, and what of the standard library stands between a loop and a call.
_OUTSIDE = re.compile(
    r"(?:^|/)(?:torch|contextlib\.py|functools\.py|threading\.py|runpy\.py|multiprocessing|concurrent|asyncio)(?:/|\(|$)"
    r"|^<"
)


class CallSite(msgspec.Struct, frozen=True):
    """The innermost ``nn.Module`` and the innermost line outside torch around a call; ``None`` where not recorded."""

    module: str | None
    line: str | None


def call_sites(columns: TraceColumns, calls: I64) -> list[CallSite]:
    """Return where each host event in ``calls`` was made; -1 stands for no event.

    Backward work runs on a thread without Python frames, so that nothing is around it.
    """
    frames = columns.category == Category.PYTHON
    if not frames.any():
        return [CallSite(None, None)] * len(calls)
    used = in_use(columns)
    modules = matching(columns, used, _MODULE)
    own = matching(columns, used, _LINE) & ~matching(columns, used, _OUTSIDE)
    thread, ts_ns = columns.thread[calls], columns.ts_ns[calls]
    found = [
        innermost_at(columns, np.flatnonzero(frames & wanted[columns.name]), thread, ts_ns) for wanted in (modules, own)
    ]

    def text(row: int, call: int) -> str | None:
        return columns.strings[columns.name[row]] if row >= 0 and call >= 0 else None

    named = zip(found[0].tolist(), found[1].tolist(), calls.tolist(), strict=True)
    return [
        CallSite((text(module, call) or "").removeprefix("nn.Module: ") or None, text(own_line, call))
        for module, own_line, call in named
    ]
