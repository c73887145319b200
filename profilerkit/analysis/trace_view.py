"""One trace with what was found in it, for everything that is computed of it; derived members are computed once."""

from functools import cached_property

import msgspec
import numpy as np

from profilerkit.analysis.device.kernels import KernelNames, self_times
from profilerkit.analysis.device.roofline import Roofline
from profilerkit.analysis.host.activity import HostActivity
from profilerkit.analysis.host.names import HostNames, main_thread
from profilerkit.analysis.intervals import EMPTY, I64, Spans, union
from profilerkit.analysis.partition import Partition, busiest_device
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.trace.columns import Bools, TraceColumns


# Without slots: what is derived is kept beside the fields.
class TraceView(msgspec.Struct, frozen=True, dict=True):
    """A trace with its names, steps, partition and roofline.

    Attributes:
        launches: ``(n_events,)`` int64, row of the launching runtime call, -1 for none.
        leaves: ``(n_events,)`` part of each compute kernel, or without a device of each operator; -1 for other events.
        ran: ``(n_events,)`` events of the judged device; on a CPU-only trace the operators.
        parts: the partition of all steps.
        most_events: device events that are replayed at most.
    """

    columns: TraceColumns
    names: HostNames
    kinds: KernelNames
    launches: I64
    steps: TraceSteps
    roof: Roofline
    leaves: I64
    ran: Bools
    host: HostActivity
    parts: Partition
    most_events: int

    @property
    def on_gpu(self) -> bool:
        """Whether there is a device, or the main thread stands for it."""
        return self.parts.mode == "gpu"

    @property
    def device_rows(self) -> Bools | None:
        """``ran`` of a device; ``None`` without one."""
        return self.ran if self.on_gpu else None

    @cached_property
    def judged(self) -> Bools:
        """``(n_events,)`` events of the steady steps."""
        return self.steps.judged_events(self.columns, self.launches)

    @cached_property
    def rows(self) -> I64:
        """Rows that ran and are judged."""
        return np.flatnonzero(self.ran & self.judged)

    @property
    def time_ns(self) -> I64:
        """Time of each of ``rows``; operators count without what is nested in them."""
        return self.columns.dur_ns[self.rows] if self.on_gpu else self_times(self.columns, self.rows)

    @property
    def window(self) -> Spans:
        """The steady steps."""
        return self.steps.steady

    @property
    def steady_ns(self) -> int:
        """Length of the steady window, at least 1."""
        return max(self.window.total_ns, 1)

    @property
    def count(self) -> int:
        """Steady steps, at least 1."""
        return max(len(self.window), 1)

    @cached_property
    def busy(self) -> Spans:
        """When the device worked; empty without one."""
        ran = self.ran
        return union(self.columns.ts_ns[ran], self.columns.end_ns[ran]) if self.on_gpu else EMPTY

    @cached_property
    def main(self) -> int:
        """The thread that runs the training loop; -1 where none is known."""
        return main_thread(self.columns)

    @cached_property
    def device(self) -> int:
        """The judged device; -1 where no event names one."""
        return busiest_device(self.columns, Spans(self.steps.start, self.steps.end))
