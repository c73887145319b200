"""The compute kernels that are judged, with what the modules beside this one ask of them."""

from collections.abc import Collection, Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.costs.arguments import Arguments
from profilerkit.analysis.costs.operators import distinct_calls, understood
from profilerkit.analysis.device.kernels import KernelNames
from profilerkit.analysis.device.roofline import Roofline
from profilerkit.analysis.intervals import I64, Spans, intersect, union
from profilerkit.trace.columns import TraceColumns

Bools = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]


class Judged(msgspec.Struct, frozen=True):
    """The kernels of the steady window that are no communication; arrays are ``(n,)`` in their order.

    Attributes:
        columns: the trace.
        kinds: its classified names.
        launches: ``(n_events,)`` int64, row of the launching runtime call, -1 for none.
        roof: all compute kernels against the roofs.
        at: their places in ``roof``.
        window: the steady steps.
        issuing: when the host issued them.
    """

    columns: TraceColumns
    kinds: KernelNames
    launches: I64
    roof: Roofline
    at: I64
    window: Spans
    issuing: Spans

    @property
    def rows(self) -> I64:
        """Rows of the kernels."""
        return self.roof.rows[self.at]

    @property
    def name(self) -> I64:
        """Their names, ids into ``columns.strings``."""
        return self.columns.name[self.rows].astype(np.int64)

    @property
    def operator(self) -> I64:
        """Row of the operator that launched each, -1 for none."""
        return self.roof.operator[self.at]

    @property
    def dur_ns(self) -> F64:
        """How long each took, at least 1."""
        return np.maximum(self.columns.dur_ns[self.rows], 1).astype(np.float64)

    @property
    def steps(self) -> int:
        """Steady steps, at least 1."""
        return max(len(self.window), 1)

    def share(self, chosen: Bools) -> float:
        """Share of the steady time in which any of the chosen kernels runs."""
        rows = self.rows[chosen]
        ran = intersect(self.window, union(self.columns.ts_ns[rows], self.columns.end_ns[rows]))
        return ran.total_ns / max(self.window.total_ns, 1)

    def part(self, ns: F64, chosen: Bools) -> float:
        """Share that ``ns`` of each chosen kernel makes, where kernels overlap as much of it as of their time."""
        total = float(self.dur_ns[chosen].sum())
        return self.share(chosen) * float(ns[chosen].sum()) / total if total else 0.0

    def calls(self, chosen: Bools) -> tuple[I64, Iterator[tuple[int, str, Arguments]]]:
        """The distinct calls behind the chosen kernels: ``(n_chosen,)`` which, and index, operator and arguments."""
        calls, member = distinct_calls(self.columns, self.operator[chosen])
        return member, understood(self.columns, calls, member)

    def of_calls(self, chosen: Bools, member: I64, calls: Collection[int]) -> Bools:
        """Which of the chosen kernels belong to these distinct calls; ``member`` says which each is of."""
        found = np.zeros(len(chosen), dtype=np.bool_)
        found[chosen] = np.isin(member, list(calls))
        return found
