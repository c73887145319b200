"""Finds what a training step changes: models, optimizers, schedulers, scalers, and the loader behind an iterator."""

import gc
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType, FunctionType, ModuleType
from typing import Any

#: Classes, by name, that keep a model or its optimizer in parts, which only they can put together.
_SHARDED = {
    *("FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine", "ZeroRedundancyOptimizer"),
    *("DistributedFusedAdam", "DistributedOptimizer", "PipelineModule"),
}

#: Names of classes that average weights beside the model: ``EMA``, ``EMAModel``, ``ModelEma``.
_AVERAGE = re.compile(r"(?<![A-Z])(EMA|Ema)(?![a-z])|MovingAverage")
#: How far it is from a loader to its generators at most, and how many objects are looked into on each way (choices).
_DEEPEST, _MOST = 6, 1_000
#: What leads from one object to all others, or holds none.
_NOT_INTO = (type, ModuleType, FunctionType, FrameType, str, bytes, int, float)


class UnprobedError(Exception):
    """A probe that cannot promise to put everything back is not made; the message is its reason."""


@dataclass(slots=True)
class Found:
    """The objects of the user's that a step changes, as Python's garbage collector knows them.

    Attributes:
        modules: every ``nn.Module``, children included.
        optimizers: of ``torch.optim`` and derived from it.
        others: LR schedulers, and averages of weights that are no modules, by the names of their classes.
        scalers: of gradients.
        models: those in ``DistributedDataParallel``.
        generators: random generators: of Python's and numpy's all, of torch's those that the loaders hold.
        loaders: torch ``DataLoader`` objects.
        graphs: CUDA graphs.
        is_scaled: gradients are scaled: the run uses mixed precision already.
        is_compiled: ``torch.compile`` was used.
    """

    modules: list[Any] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)
    scalers: list[Any] = field(default_factory=list)
    models: list[Any] = field(default_factory=list)
    generators: list[Any] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)
    is_scaled: bool = False
    is_compiled: bool = False


def find(iterator: Any) -> Found:
    """Everything of these kinds that is alive, and what ``iterator`` holds; some 50 ms per million objects.

    Raises:
        UnprobedError: something is among it that cannot be put back.
    """
    torch = sys.modules["torch"]
    found = Found(is_compiled=_frames_compiled())
    kinds = _kinds(torch)
    known: dict[type, list[str]] = {}
    for one in gc.get_objects():
        kind = type(one)  # not ``isinstance``: proxies answer that with code of their own
        if kind not in known:
            known[kind] = [name for name, wanted in kinds if issubclass(kind, wanted)]
            if not known[kind] and _AVERAGE.search(kind.__name__):
                known[kind] = ["others"]
        for name in known[kind]:
            getattr(found, name).append(one)
    if found.graphs:
        raise UnprobedError("the run replays CUDA graphs")
    for owner in (*found.modules, *found.optimizers):
        named = {parent.__name__ for parent in type(owner).__mro__} & _SHARDED
        if named:
            raise UnprobedError(f"{min(named)} keeps its state in parts")
    if not found.optimizers:
        raise UnprobedError("no torch.optim optimizer was found")
    found.is_scaled = any(one.is_enabled() for one in found.scalers)
    found.generators += _held_by([iterator, *found.loaders], torch.Generator)
    return found


def _held_by(roots: list[Any], kind: type) -> list[Any]:
    """The objects of this kind that ``roots`` refer to, by way of a few others: a sampler, a data set."""
    seen: set[int] = set()
    held: list[Any] = []
    for _ in range(_DEEPEST):
        roots = [one for one in roots if not isinstance(one, _NOT_INTO) and id(one) not in seen]
        seen |= {id(one) for one in roots}
        near = [one for root in roots[:_MOST] for one in gc.get_referents(root)[:_MOST]]
        held += [one for one in near if type(one) is kind]
        roots = near
    return list({id(one): one for one in held}.values())


def _kinds(torch: Any) -> list[tuple[str, Any]]:
    schedulers, numpy = torch.optim.lr_scheduler, getattr(sys.modules.get("numpy"), "random", None)
    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    kinds: list[tuple[str, Any]] = [
        ("modules", torch.nn.Module),
        ("optimizers", torch.optim.Optimizer),
        ("others", (schedulers.LRScheduler, schedulers.ReduceLROnPlateau)),
        ("scalers", scaler),
        ("loaders", torch.utils.data.DataLoader),
        ("models", getattr(torch.nn.parallel, "DistributedDataParallel", None)),
        ("graphs", getattr(torch.cuda, "CUDAGraph", None)),
        ("generators", random.Random),
        ("generators", getattr(numpy, "Generator", None)),
        ("generators", getattr(numpy, "RandomState", None)),
    ]
    return [(name, kind) for name, kind in kinds if kind is not None]


def _frames_compiled() -> bool:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None) or {}
    return "frames" in counters and bool(counters["frames"].get("total", 0))


def trains_in_parallel() -> bool:
    """Whether a model is in ``DistributedDataParallel``."""
    wrapper = getattr(sys.modules["torch"].nn.parallel, "DistributedDataParallel", None)
    return wrapper is not None and any(issubclass(type(one), wrapper) for one in gc.get_objects())


def loader_of(found: Found, iterator: Any) -> Any:
    """The ``DataLoader`` that ``iterator`` is of; ``None`` where it is of none, or that is gone."""
    sampler = getattr(iterator, "_index_sampler", None)
    return next((one for one in found.loaders if sampler is not None and _sampler(one) is sampler), None)


def _sampler(loader: Any) -> Any:
    return getattr(loader, "_index_sampler", None)


def parameters(found: Found) -> Iterator[Any]:
    """Every parameter of every module, once."""
    seen = set()
    for module in found.modules:
        for value in module.parameters(recurse=False):
            if id(value) not in seen:
                seen.add(id(value))
                yield value
