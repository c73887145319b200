"""The kinds of loop: what each does, what is wrong with it, and what may be said of it."""

from dataclasses import dataclass, replace

from device_loops.loop import (
    Action,
    Before,
    Chip,
    Collect,
    Collective,
    Compile,
    Copy,
    Every,
    Fetch,
    Item,
    Loop,
    OnRank,
    Pass,
    Phase,
    Python,
    Replay,
    Retry,
    Save,
    train,
)

#: Verdicts over a loop with which nothing is wrong.
NOTHING = ("compute-bound", "memory-bound/bandwidth", "balanced")
#: A recording that cannot show the cause may say so.
UNSEEN = "inconclusive"


@dataclass(frozen=True)
class Kind:
    """A loop whose cause is known.

    Attributes:
        what: the cause, for a person.
        traced: verdicts that are right where the trace has kernels: a bound, or a bound with its detail.
        light: the same for the light tier alone, and for traces without kernels.
        alone: the same for a trace without the light tier; empty where it shows no less than with it.
        rules: where the cause is an observation: one of these fires. With a trace; ``light_rules`` without.
        sampled: rules that the samples alone let speak: one of these fires with them, and each says that it cannot tell
            without.
        unseen: rules that say in every mode that they cannot tell.
        rank: the rank that is late, to be named with a trace.
        fixed: the loop without the cause, of which the true saving is taken; ``None`` for a healthy one, and where a
            fix would change what is computed.
        by_mean: steps are of two lengths, so that only their mean says how long one is.
    """

    name: str
    what: str
    loop: Loop
    traced: tuple[str, ...] = NOTHING
    light: tuple[str, ...] = (*NOTHING, UNSEEN)
    alone: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    light_rules: tuple[str, ...] = ()
    sampled: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    rank: int | None = None
    fixed: Loop | None = None
    is_healthy: bool = False
    by_mean: bool = False


def _loop(*step: Action, **settings: object) -> Loop:
    return Loop(step, **settings)  # type: ignore[arg-type]


def _healthy(name: str, what: str, *step: Action, **settings: object) -> Kind:
    return Kind(name, what, _loop(*step, **settings), is_healthy=True)


_BATCH = (Fetch(), Pass("forward", 3, 3.0, 0.6), Pass("backward", 6, 6.7, 1.2))
_GAN = (
    Pass("forward", 3, 3.0, 0.5), Pass("backward", 4, 5.0, 0.7), Pass("optimizer", 1, 0.3, 0.2, name="Adam"),
    Pass("forward", 3, 4.0, 0.5), Pass("backward", 4, 7.0, 0.7), Pass("optimizer", 1, 0.3, 0.2, name="AdamW"),
)  # fmt: skip
_ITEM_10 = Every(10, (Item(),))
_CHECK = Phase("checkpoint", (Save(50.0),))
_SHORT_EVALUATION = Phase("evaluation", (Pass("forward", 20, 60.0, 1.2), Item()))

HEALTHY: tuple[Kind, ...] = (
    _healthy("item_every_step", "the loss is read in every step", Fetch(), *train(), Item()),
    _healthy("item_every_10", "the loss is read every 10 steps", Fetch(), *train(), _ITEM_10, annotated=True),
    _healthy("item_every_50", "the loss is read every 50 steps", Fetch(), *train(), Every(50, (Item(),)), steps=300),
    _healthy("item_never", "nothing is read; few launches", Fetch(), *train()),
    _healthy("item_never_launches", "nothing is read; 240 launches", Fetch(), *train(20.0, 4.8, 240), steps=120),
    _healthy("accumulation", "four batches to a step, read every 5 steps", *_BATCH * 4, Pass("optimizer", 1, 0.6, 0.3),
             Every(5, (Item(),)), found_by="step()", steps=160),
    _healthy("graph_replay", "the step is a graph, read every 20 steps", Fetch(0.03), Replay(24, 6.0),
             Every(20, (Item(),)), steps=500),
    _healthy("compiled", "compiled in the first steps, then read every 10", Fetch(), Before(3, (Compile(4000.0),)),
             *train(), _ITEM_10),
    _healthy("prefetched", "batches are copied on their own stream", Fetch(0.1, workers=4), Copy(4.0, own_stream=True),
             *train(), _ITEM_10, annotated=True),
    _healthy("hidden_wait", "the host makes batches while the device computes", Fetch(15.0), *train()),
    _healthy("hidden_workers", "workers are slower than the host, not than the device", Fetch(30.0, workers=2),
             *train(), Every(50, (Item(),))),
    _healthy("short_evaluation", "an evaluation of 3 % of the time", Fetch(), *train(), _ITEM_10,
             Every(100, (_SHORT_EVALUATION,)), steps=320),
    _healthy("short_checkpoint", "a checkpoint of 2.5 % of the time", Fetch(), *train(), _ITEM_10,
             Every(100, (_CHECK,)), steps=320),
    _healthy("two_optimizers", "generator and discriminator", Fetch(), *_GAN, _ITEM_10),
    _healthy("jittery", "the device's time varies by a tenth", Fetch(), *train(20.0, 2.0, 6), _ITEM_10,
             device_jitter=0.25),
    _healthy("hidden_collections", "garbage is collected while the device computes", Fetch(), *train(),
             Every(20, (Collect(60.0),))),
    _healthy("hidden_python", "Python of 8 ms while the device computes", Fetch(), Python(8.0), *train(), _ITEM_10),
    _healthy("full_power", "the power limit that the device has by default holds its clock down at full load",
             Fetch(), *train(), _ITEM_10,
             chip=Chip(slow_ratio=1.2, clock_mhz=1620, reasons=0x4, power_throttle_ratio=0.9)),
    _healthy("two_ranks", "gradients averaged behind backward", Fetch(), *train(reduced=True), _ITEM_10, ranks=2),
    _healthy("no_kernels", "nothing wrong; the profiler sees no device", Fetch(), *train(), _ITEM_10, cupti="calls"),
)  # fmt: skip


def _synced(item: tuple[Action, ...]) -> tuple[Action, ...]:
    part = (Pass("forward", 4, 1.6, 0.3), *item, Python(1.4))
    return Fetch(), *part * 6, Pass("backward", 4, 2.0, 0.4), Pass("optimizer", 1, 0.3, 0.2)


def _sharded(gather_ms: float) -> tuple[Action, ...]:
    gather = Collective(gather_ms, "_allgather_base", "all_gather_into_tensor", exposed=True)
    scatter = Collective(0.5, "_reduce_scatter_base", "reduce_scatter_tensor")
    layers = (gather, Pass("forward", 3, 1.5, 0.3)) * 4 + (gather, Pass("backward", 3, 3.0, 0.4), scatter) * 4
    return Fetch(), *layers, Pass("optimizer", 1, 0.4, 0.2)


def _late(rank: int, *slow: Action, others: tuple[Action, ...] = (Fetch(),)) -> tuple[Action, ...]:
    return OnRank(rank, slow, others), *train(reduced=True)


def _rare(ms: float) -> Fetch:
    return Fetch(30.0, workers=4, slow_every=25, slow_ms=ms)


_LAUNCHES = (Fetch(), *train(2.7, 9.0, 300))
_FEWER = _loop(Fetch(), *train(2.7, 0.9, 300))
_EVALUATION = Phase("evaluation", (*(Pass("forward", 10, 30.0, 1.0),) * 20, Item()))
_CAPPED = Chip(slow_ratio=1.6, clock_mhz=1230, reasons=0x4, power_throttle_ratio=0.95, power_limit_mw=350_000)
_HOT = Chip(slow_ratio=1.5, from_step=60, clock_mhz=1320, reasons=0x20, thermal_throttle_ratio=0.9)
_HIDDEN = ("compute-bound", UNSEEN)
_INPUT = ("input-bound",)

FAULTY: tuple[Kind, ...] = (
    Kind("input_alone", "the host makes batches, for longer than the device computes",
         _loop(Fetch(32.0), *train(10.0)), _INPUT, _INPUT, fixed=_loop(Fetch(), *train(10.0))),
    Kind("input_read", "the same, and the loss is read in every step",
         _loop(Fetch(15.0), *train(20.0), Item()), _INPUT, _INPUT, fixed=_loop(Fetch(), *train(20.0), Item())),
    Kind("input_workers", "two workers are slower than the device",
         _loop(Fetch(60.0, workers=2), *train(10.0)), _INPUT, _INPUT, fixed=_loop(Fetch(), *train(10.0))),
    Kind("input_paired", "two workers are slower than the device, and have their batches ready together",
         _loop(Fetch(60.0, workers=2, paired=True), *train(10.0)), _INPUT, _INPUT, fixed=_loop(Fetch(), *train(10.0)),
         by_mean=True),
    Kind("drained_queue", "now and then a slow batch empties the queue",
         _loop(_rare(450.0), *train(), Item()), _INPUT, _INPUT, fixed=_loop(_rare(30.0), *train(), Item())),
    Kind("launch_bound", "300 launches take longer than their kernels",
         _loop(*_LAUNCHES, steps=120), ("overhead-bound/launch",), ("overhead-bound", UNSEEN), fixed=_FEWER),
    Kind("launch_bound_read", "the same, and the loss is read every 10 steps",
         _loop(*_LAUNCHES, _ITEM_10, steps=120), ("overhead-bound/launch",), ("overhead-bound", UNSEEN), fixed=_FEWER),
    Kind("python_bound", "Python of 25 ms, longer than the device computes",
         _loop(Fetch(), Python(25.0), *train(10.0)), ("overhead-bound/python",), ("overhead-bound", UNSEEN),
         fixed=_loop(Fetch(), *train(10.0))),
    Kind("six_syncs", "six values are read in every step",
         _loop(*_synced((Item(),))), ("overhead-bound/sync", "overhead-bound/python"), ("overhead-bound", UNSEEN),
         rules=("OV002",), fixed=_loop(*_synced(()))),
    Kind("pageable_copy", "batches are copied from pageable memory",
         _loop(Fetch(), Copy(8.0, pinned=False), *train(12.0)), ("input-bound/h2d",), ("input-bound/h2d", UNSEEN),
         fixed=_loop(Fetch(), Copy(2.0, own_stream=True), *train(12.0))),
    Kind("exposed_copy", "batches are copied in line with the kernels",
         _loop(Fetch(), Copy(8.0), *train(12.0), _ITEM_10, annotated=True), ("input-bound/h2d",),
         ("input-bound/h2d", UNSEEN), fixed=_loop(Fetch(), Copy(8.0, own_stream=True), *train(12.0), _ITEM_10)),
    Kind("late_by_host", "the host of rank 1 runs Python for longer than the device computes",
         _loop(*_late(1, Fetch(), Python(28.0)), ranks=3), ("overhead-bound",), ("overhead-bound", UNSEEN), rank=1,
         fixed=_loop(*_late(1, Fetch()), ranks=3)),
    Kind("late_by_device", "the device of rank 2 is slower",
         _loop(*_late(2, Fetch()), ranks=3, chip=Chip(slow_ratio=1.5, rank=2)),
         ("compute-bound", "comm-bound"), _HIDDEN, rank=2, fixed=_loop(*_late(2, Fetch()), ranks=3)),
    Kind("late_by_input", "rank 1 waits for its batches",
         _loop(*_late(1, Fetch(32.0)), ranks=3), _INPUT, _INPUT, rank=1, fixed=_loop(*_late(1, Fetch()), ranks=3)),
    Kind("power_cap", "a power limit holds the clock down", _loop(Fetch(), *train(), _ITEM_10, chip=_CAPPED),
         sampled=("CP009",)),
    Kind("thermal", "heat holds the clock down", _loop(Fetch(), *train(), _ITEM_10, chip=_HOT),
         light=_HIDDEN, sampled=("CP009",)),
    Kind("neighbour", "another process is on the device",
         _loop(Fetch(), *train(), _ITEM_10, chip=Chip(slow_ratio=1.6, neighbours=1)), light=_HIDDEN,
         sampled=("RU006",)),
    Kind("hidden_neighbour", "another process is on the device, in a container that does not show it",
         _loop(Fetch(), *train(), _ITEM_10, chip=Chip(slow_ratio=1.6, neighbours=None)), light=_HIDDEN,
         unseen=("RU006",)),
    Kind("allocator_retries", "the allocator gives its cache back in every step",
         _loop(Fetch(), Pass("forward", 3, 4.0, 0.6), Retry(8.0), *train(10.0)), ("memory-bound/capacity",),
         ("memory-bound/capacity", UNSEEN), light_rules=("ME001",),
         fixed=_loop(Fetch(), Pass("forward", 3, 4.0, 0.6), *train(10.0))),
    Kind("exposed_gathers", "parameters are gathered layer by layer, and nothing hides it",
         _loop(*_sharded(1.5), ranks=2, steps=160), ("comm-bound",), ("comm-bound", UNSEEN),
         fixed=_loop(*_sharded(0.02), ranks=2, steps=160)),
    Kind("checkpoints", "checkpoints of a third of the time",
         _loop(Fetch(), *train(), _ITEM_10, Every(35, (Phase("checkpoint", (Save(400.0),)),))),
         ("overhead-bound/checkpoint",), ("overhead-bound/checkpoint",), ("overhead-bound", UNSEEN),
         fixed=_loop(Fetch(), *train(), _ITEM_10)),
    Kind("evaluations", "evaluations of two fifths of the time",
         _loop(Fetch(), *train(), _ITEM_10, Every(35, (_EVALUATION,))),
         ("overhead-bound/evaluation",), ("overhead-bound/evaluation",), ("overhead-bound", "compute-bound", UNSEEN),
         fixed=_loop(Fetch(), *train(), _ITEM_10, Every(70, (_EVALUATION,)))),
    Kind("collections", "garbage is collected while the device idles",
         _loop(Fetch(), *train(), Item(), Every(5, (Collect(60.0),))), ("overhead-bound/gc",), ("overhead-bound/gc",),
         ("overhead-bound",), fixed=_loop(Fetch(), *train(), Item())),
    Kind("launch_bound_calls", "launch-bound; the profiler sees calls and no kernel",
         _loop(*_LAUNCHES, steps=120, cupti="calls"), ("overhead-bound/launch",), ("overhead-bound", UNSEEN),
         fixed=_FEWER),
    Kind("launch_bound_nothing", "launch-bound; the profiler sees operators alone",
         _loop(*_LAUNCHES, steps=120, cupti="nothing"), ("overhead-bound/launch",), ("overhead-bound", UNSEEN),
         ("overhead-bound", "compute-bound", UNSEEN),  # alone such a trace is that of a run on the host
         fixed=_FEWER),
)  # fmt: skip

KINDS: dict[str, Kind] = {kind.name: kind for kind in (*HEALTHY, *FAULTY)}


def sped_up(loop: Loop, ratio: float) -> Loop:
    """The loop on a device on which every kernel takes ``ratio`` times as long."""
    return replace(loop, chip=replace(loop.chip, slow_ratio=ratio))
