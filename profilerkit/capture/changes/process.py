"""Change optimizers, and what holds for the whole process."""

import functools
import gc
import inspect
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from profilerkit.capture.changes.making import SETTLED, Changes

_COLLECTED_EVERY = 500  #: steps between two collections by hand


def optimizers(changes: Changes, wanted: dict[str, Any]) -> None:
    """Change how optimizers step."""
    optim = sys.modules["torch.optim"]
    kinds = {kind for kind in vars(optim).values() if inspect.isclass(kind) and issubclass(kind, optim.Optimizer)}
    able: dict[str, list[type]] = {name: [] for name in wanted}
    for kind in kinds:
        known = inspect.signature(kind.__init__).parameters
        for name in wanted.keys() & known.keys():
            able[name].append(kind)
        if own := {name: value for name, value in wanted.items() if name in known}:
            changes.in_calls(kind, own, _one_way_to_step)

    def made(optimizer: Any) -> None:
        for name, kinds in able.items():
            if not isinstance(optimizer, tuple(kinds)):
                changes.refuse(name, f"{type(optimizer).__name__} takes no {name}")

    changes.in_calls(optim.Optimizer, {}, after=made)


def _one_way_to_step(given: dict[str, Any], values: dict[str, Any]) -> None:
    """``fused`` and ``foreach`` exclude each other: the one that is wanted counts."""
    for name, other in (("fused", "foreach"), ("foreach", "fused")):
        if values.get(name) and given.get(other) and other not in values:
            values[other] = None


def set_to_none(changes: Changes, wanted: dict[str, Any]) -> None:
    """Change whether gradients are dropped or filled with zeros."""
    for owner in (sys.modules["torch"].optim.Optimizer, sys.modules["torch"].nn.Module):
        changes.in_calls(owner, wanted, name="zero_grad")


#: What reads and sets a setting of the whole process, in torch.
_WIDE = {
    "matmul_precision": ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    "cudnn_benchmark": ("_C._get_cudnn_benchmark", "_C._set_cudnn_benchmark"),
    "threads": ("get_num_threads", "set_num_threads"),
}


def wide(changes: Changes, wanted: dict[str, Any]) -> None:
    """Change settings of the whole process: now, and once more when training begins."""

    def set_it(name: str) -> None:
        get, put = calls[name]
        if changes.differs(name, get(), wanted[name]):
            put(wanted[name])
            changes.applied[name] = []

    calls = {name: attrgetter(*_WIDE[name])(sys.modules["torch"]) for name in wanted}
    for name, (get, put) in calls.items():
        changes.patches.on_remove(functools.partial(put, get()))
        changes.attempt(name, set_it, name)
        # The program may have set it back until then.
        changes.at_step(0, functools.partial(changes.attempt, name, set_it, name))


def gc_freeze(changes: Changes, _wanted: dict[str, Any]) -> None:
    """Have the garbage collector leave alone what the first steps made, and collect by hand, as rule OV004 proposes."""

    def freeze() -> None:
        gc.collect()
        gc.freeze()
        changes.patches.on_remove(gc.unfreeze)
        if gc.isenabled():
            gc.disable()
            changes.patches.on_remove(gc.enable)
        changes.applied["gc_freeze"] = []
        collect(_COLLECTED_EVERY)

    def collect(steps: int) -> None:
        def again() -> None:
            gc.collect(1)
            collect(steps + _COLLECTED_EVERY)

        changes.at_step(steps, again)

    changes.at_step(SETTLED, freeze)


def anomaly(changes: Changes, _wanted: dict[str, Any]) -> None:
    """Keep anomaly detection off."""
    torch = sys.modules["torch"]
    if torch.is_anomaly_enabled():
        torch.set_anomaly_enabled(False)
        changes.applied["anomaly"] = []
        changes.patches.on_remove(lambda: torch.set_anomaly_enabled(True))

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
            if mode and changes.patches.armed:
                changes.found("anomaly")
            original(mode and not changes.patches.armed, check_nan)

        return set_anomaly_enabled

    changes.patches.patch(torch, "set_anomaly_enabled", make)
