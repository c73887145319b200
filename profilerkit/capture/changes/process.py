"""Change optimizers, and what holds for the whole process."""

import functools
import gc
import inspect
import sys
from collections.abc import Callable
from typing import Any

from profilerkit.capture.changes.making import SETTLED, Changes
from profilerkit.capture.timed_calls import not_compiled

#: Steps between two collections by hand.
_COLLECTED_EVERY = 500


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
            changes.in_calls(kind, own, functools.partial(_optimizer_arguments, changes))

    def made(optimizer: Any) -> None:
        for name, kinds in able.items():
            if not isinstance(optimizer, tuple(kinds)):
                changes.refuse(name, f"{type(optimizer).__name__} takes no {name}")

    changes.in_calls(optim.Optimizer, {}, after=made)


def _optimizer_arguments(changes: Changes, given: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """``fused`` and ``foreach`` exclude each other: the one that is wanted counts."""
    values = {name: value for name, value in wanted.items() if changes.differs(name, given.get(name), value)}
    for name, other in (("fused", "foreach"), ("foreach", "fused")):
        if values.get(name) and given.get(other) and not wanted.get(other):
            values[other] = None
    return values


def set_to_none(changes: Changes, wanted: dict[str, Any]) -> None:
    """Change whether gradients are dropped or filled with zeros."""
    torch, value = sys.modules["torch"], wanted["set_to_none"]

    def make(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def zero_grad(owner: Any, set_to_none: bool = True) -> None:
            if set_to_none != value and changes.patches.armed:
                changes.found("set_to_none", once=True)
                set_to_none = value
            original(owner, set_to_none=set_to_none)

        return not_compiled(zero_grad)

    changes.patches.patch(torch.optim.Optimizer, "zero_grad", make)
    changes.patches.patch(torch.nn.Module, "zero_grad", make)


def process_wide(
    name: str, get: Callable[[Any], Any], put: Callable[[Any, Any], object]
) -> "Callable[[Changes, dict[str, Any]], None]":
    """Return how a setting of torch is applied that its functions ``get`` and ``put``."""

    def apply(changes: Changes, wanted: dict[str, Any]) -> None:
        torch, value = sys.modules["torch"], wanted[name]
        before = get(torch)

        def set_it() -> None:
            if get(torch) != value:
                put(torch, value)
                changes.applied[name] = []

        set_it()
        changes.at_start(set_it)
        changes.at_start(lambda: changes.refuse(name, f"{name} is {value} already"))
        changes.patches.on_remove(lambda: put(torch, before))

    return apply


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
