"""What-ifs: a job, the same job with one cause removed, and the changes of the replay that should foretell it.

The rows of §3.5 of the diagnosis method, and one for each of the classes G01 to G28 whose steps can be replayed. The
truth is a second simulation; the replay sees the trace of the first.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from profilerkit.analysis.replay import changes
from profilerkit.analysis.replay.changes import Change
from profilerkit.analysis.replay.graph import Graph
from profilerkit.model import revise
from profilerkit.model.step import LEAVES, leaf
from profilerkit.rules.run.blocking_checkpoint import BlockingCheckpoint
from simulator import classes, faults
from simulator.job import US, Job, Memory, Odd, Reads
from simulator.model import device_ns
from simulator.parallel import COMM_STREAM
from simulator.sample import added, plain

_COMPUTE = (*(name for name in LEAVES if name.startswith("compute.")), "mem.recompute")
#: What is left of a checkpoint that is written beside training.
_TAKING = 1.0 - BlockingCheckpoint().background_ratio
#: Shares of the step that faults take, as in the classes.
_LOW, _HIGH = 0.05, 0.5


@dataclass(frozen=True)
class WhatIf:
    """One kind of fix.

    Attributes:
        code: the row (``W01`` …) or the class it belongs to.
        draw: a job with the fault, from a random source and the share of the step that the fault is to take.
        better: the job with the fix.
        changes: what the replay is told of it, from the job alone.
        closes: no replay may be believed: an edge is missing from the trace.
        rule: whose fix it is; empty where none proposes exactly that.
    """

    code: str
    what: str
    draw: Callable[[random.Random, float], Job]
    better: Callable[[Job], Job]
    changes: Callable[[Job], Sequence[Change]]
    closes: bool = False
    rule: str = ""


@dataclass(frozen=True)
class Wire:
    """Collectives ``speed_up`` times shorter, but for ``floor_ns`` that each takes however little it sends."""

    fix_class: ClassVar[str] = "communication"
    speed_up: float
    floor_ns: float = 0.0

    def __call__(self, graph: Graph) -> Graph:
        """Shorter collectives on the device."""
        floor = np.minimum(self.floor_ns, graph.dur_ns)
        faster = floor + (graph.dur_ns - floor) / self.speed_up
        return revise(graph, dur_ns=np.where(graph.leaf == leaf("comm.other"), faster, graph.dur_ns))


def _faster(factor: float) -> tuple[Callable[[Job], Job], Callable[[Job], Sequence[Change]]]:
    """All kernels ``factor`` times faster."""
    return (
        lambda job: replace(job, faster=factor),
        lambda job: (changes.Kernels(factor, _COMPUTE),),
    )


def _wire(factor: float) -> tuple[Callable[[Job], Job], Callable[[Job], Sequence[Change]]]:
    """The wire ``factor`` times faster; what every collective takes at least stays."""
    return (
        lambda job: replace(job, comm=replace(job.comm, bus_gb_per_s=factor * job.comm.bus_gb_per_s)),
        lambda job: (Wire(factor, floor_ns=job.comm.latency_us * US),),
    )


def _no_python(job: Job) -> Job:
    return replace(job, host=replace(job.host, python_us=0.0))


_PYTHON = (_no_python, lambda job: (changes.HostTime(("over.python",), longer_than_ns=200 * US),))


def _slow_input(rng: random.Random, share: float, workers: int) -> Job:
    """The workers do not keep up: the step waits ``share`` of itself for each batch."""
    job = plain(rng, readback=True)
    produce_us = (device_ns(job) / US + added(job, share)) * max(workers, 1)
    produce_us = added(job, share) if workers == 0 else produce_us
    return replace(job, data=replace(job.data, workers=workers, produce_us=produce_us), before=6)


def _more_workers(count: int) -> Callable[[Job], Job]:
    return lambda job: replace(job, data=replace(job.data, workers=count))


def _waits_with(count: int) -> Callable[[Job], Sequence[Change]]:
    """What the fluid model leaves of the waits: the workers' rate, or the hand-over of a batch that is there."""

    def wait_us(job: Job, workers: int) -> float:
        made = job.data.produce_us / workers - device_ns(job) / US if workers else job.data.produce_us
        return max(made, 0.0) + job.data.fetch_us

    return lambda job: (changes.LoaderWaits(wait_us(job, count) / wait_us(job, job.data.workers)),)


def _reads(rng: random.Random, share: float, *, busy: bool) -> Job:
    """Eight values read back; the queue behind them is long or the host has trouble to issue at all."""
    layers = (2,) if busy else (1,)
    low, high = (15.0, 40.0) if busy else (1.2, 2.5)
    return replace(plain(rng, low_ms=low, high_ms=high, layers=layers, readback=True), reads=Reads(8), before=4)


def _kept(job: Job) -> Job:
    return replace(job, reads=replace(job.reads, kept=True), host=replace(job.host, readback=False), before=8)


def _launch_bound(rng: random.Random, share: float) -> Job:
    """Kernels of a few microseconds: the host takes longer to issue each than it runs."""
    job = plain(rng, low_ms=1.2, high_ms=2.5, layers=(1,), readback=True)
    return replace(job, faster=rng.uniform(5.0, 20.0), before=2)


def _python(rng: random.Random, share: float) -> Job:
    """The user's Python between the steps, with the loss read in each: nothing hides it."""
    job = plain(rng, readback=True)
    return replace(job, host=replace(job.host, python_us=added(job, share)))


def _checkpoints(rng: random.Random, share: float) -> Job:
    job = plain(rng, readback=True)
    return replace(job, odd=Odd(checkpoint_every=3, checkpoint_us=3 * added(job, share)))


def _aside(job: Job) -> Job:
    """The checkpoint is written beside training, as RU001 proposes; taking it still stops training."""
    return replace(job, odd=replace(job.odd, checkpoint_us=_TAKING * job.odd.checkpoint_us))


def _input_and_reads(rng: random.Random, share: float) -> Job:
    return replace(_slow_input(rng, share, 1), reads=Reads(4))


def _compute_is_slow(rng: random.Random, share: float) -> Job:
    return plain(rng, readback=True)


def _lost_edge(rng: random.Random, share: float) -> Job:
    """Collectives that nothing overlaps, and of which the trace holds none: the optimizer waits for no reason."""
    job = replace(classes.BY_CODE["G15"].inject(rng, max(share, 0.12)))
    return replace(job, recording=replace(job.recording, lost_streams=(COMM_STREAM,)))


def _inject(code: str) -> Callable[[random.Random, float], Job]:
    return classes.BY_CODE[code].inject


def _of(code: str, fix: tuple[Callable[[Job], Job], Callable[[Job], Sequence[Change]]], rule: str = "") -> WhatIf:
    return WhatIf(code, classes.BY_CODE[code].what, _inject(code), *fix, rule=rule)


def _fed(job: Job) -> Sequence[Change]:
    return (changes.LoaderWaits(),)


def _relieved(code: str) -> Callable[[Job], Job]:
    relieve = classes.BY_CODE[code].relieve
    assert relieve is not None
    return relieve


WHATIFS: tuple[WhatIf, ...] = (
    WhatIf("W01", "input, no workers to 2", lambda r, s: _slow_input(r, s, 0), _more_workers(2), _waits_with(2),
           rule="IN002"),
    WhatIf("W02", "input, 1 worker to 4", lambda r, s: _slow_input(r, s, 1), _more_workers(4), _waits_with(4)),
    WhatIf("W03", "8 syncs to 0, queue busy", lambda r, s: _reads(r, s, busy=True), _kept,
           lambda j: (changes.Syncs(),), rule="OV002"),
    WhatIf("W04", "8 syncs to 0, launch-bound", lambda r, s: _reads(r, s, busy=False), _kept,
           lambda j: (changes.Syncs(),), rule="OV002"),
    WhatIf("W05", "launch-bound to a CUDA graph", _launch_bound, faults.as_graph, lambda j: (changes.OneLaunch(),),
           rule="OV001"),
    WhatIf("W06", "wire twice as fast", _inject("G13"), *_wire(2.0)),
    WhatIf("W07", "kernels twice as fast", _compute_is_slow, *_faster(2.0)),
    WhatIf("W08", "kernels 4 times as fast: launch-bound", _compute_is_slow, *_faster(4.0)),
    WhatIf("W09", "Python in every step", _python, *_PYTHON, rule="OV005"),
    WhatIf("W10", "checkpoint every 3 steps, written aside", _checkpoints, _aside,
           lambda j: (changes.Phases(("other.ckpt",), _TAKING),), rule="RU001"),
    WhatIf("W11", "input and syncs, input fixed", _input_and_reads, _more_workers(4), _waits_with(4)),
    WhatIf("W12", "the edges of the collectives are lost", _lost_edge, *_wire(2.0), closes=True),
    WhatIf("W13", "input and syncs, both fixed", _input_and_reads, lambda job: _kept(_more_workers(4)(job)),
           lambda job: (*_waits_with(4)(job), changes.Syncs())),
    WhatIf("W14", "input-bound, kernels twice as fast", lambda r, s: _slow_input(r, max(s, 0.15), 1),
           *_faster(2.0)),
    _of("G01", _faster(2.0)), _of("G02", _faster(1.5)), _of("G03", _faster(1.5)), _of("G04", _faster(2.0)),
    _of("G05", _faster(1.5)), _of("G06", _faster(2.0)),
    _of("G07", (lambda job: replace(job, tiny=replace(job.tiny, reads=0), host=replace(job.host, readback=False)),
                lambda job: (changes.Syncs(),))),
    _of("G08", (_kept, lambda job: (changes.Syncs(),)), "OV002"),
    _of("G09", (faults.pinned, lambda job: (changes.PinnedCopies(faults.pinned_gb_per_s(job)),)), "IN009"),
    _of("G10", (faults.copied_aside, lambda job: (changes.HiddenCopies(),)), "IN010"),
    _of("G11", (lambda job: replace(job, memory=Memory()), lambda job: (changes.Allocator(),)), "ME001"),
    _of("G12", _faster(2.0)), _of("G13", _wire(4.0)),
    _of("G14", (lambda job: replace(job, comm=replace(job.comm, latency_us=job.comm.latency_us / 2,
                                                      bus_gb_per_s=2 * job.comm.bus_gb_per_s)),
                lambda job: (Wire(2.0),))),
    _of("G15", (_relieved("G15"), lambda job: (changes.HiddenCollectives(),)), "CO002"),
    _of("G16", (_relieved("G16"), _fed)),
    _of("G17", (_relieved("G17"), lambda job: (changes.Kernels(job.late.slow_ratio, _COMPUTE),))),
    _of("G18", _wire(2.0)), _of("G19", _faster(1.5)), _of("G20", _wire(2.0)),
    _of("G21", (_relieved("G21"), lambda job: (changes.HostTime(("warm.compile",)),))),
    _of("G22", (_relieved("G22"), lambda job: (changes.HostTime(("other.prof",)),))),
    _of("G23", _PYTHON, "OV005"), _of("G24", _faster(1.5)), _of("G25", _PYTHON, "OV005"), _of("G27", _PYTHON, "OV005"),
    _of("G28", (_relieved("G28"), _fed)),
)  # fmt: skip

BY_CODE = {entry.code: entry for entry in WHATIFS}


def share_of_draw(rng: random.Random, index: int, count: int) -> float:
    """Injected shares spread over the range."""
    return _LOW + (_HIGH - _LOW) * (index + rng.random()) / count
