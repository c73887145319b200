"""The probes: what each changes in the steps, when it cannot be made, and how it is undone."""

import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from profilerkit.capture.guard import attempt
from profilerkit.capture.probes.found import Found, UnprobedError, loader_of, parameters
from profilerkit.capture.workers import unwatched
from profilerkit.model.probe_names import ProbeName

#: Kinds of samplers, by name, whose keys are positions in the data set.
_POSITIONS = {"RandomSampler", "SequentialSampler", "WeightedRandomSampler", "DistributedSampler"}
_DEFAULT_PREFETCH = 2
#: A worker of the second loader that gives nothing for so long ends the probe, s (a choice).
_TIMEOUT_S = 60


class Probe(Protocol):
    """One thing changed.

    Attributes:
        name: of the probe.
        change: what is different, with the values; complete once ``apply`` has been called.
        has_control: its steps are compared with steps on a batch at hand, not with the run's own.
        batch: gives the batches of its steps; ``None`` for a batch at hand.
        burst: batches that come together, one of each worker.
    """

    name: ProbeName
    change: str
    has_control: bool
    batch: Callable[[], Any] | None
    burst: int

    def check(self, found: Found, iterator: Any) -> None:
        """Raise ``UnprobedError`` where it cannot be made; ``iterator`` feeds the steps."""

    def apply(self) -> None:
        """From the step on that starts now."""

    def undo(self) -> None:
        """As before; does nothing where it is not applied."""


class InputProbe:
    """No fetch: the most that any change of the loader can save."""

    name: ProbeName = "input"
    change = "one batch at hand for all steps"
    has_control = False
    batch: Callable[[], Any] | None = None
    burst = 1

    def check(self, found: Found, iterator: Any) -> None:
        """Nothing speaks against it."""

    def apply(self) -> None:
        """The batch at hand is all."""

    def undo(self) -> None:
        """Nothing is left."""


class CommProbe:
    """No exchange of gradients, as in ``DistributedDataParallel.no_sync``."""

    name: ProbeName = "comm"
    change = "no exchange of gradients (no_sync)"
    has_control = True
    batch: Callable[[], Any] | None = None
    burst = 1

    def __init__(self) -> None:
        self._models: list[Any] = []
        self._before: list[bool] = []

    def check(self, found: Found, iterator: Any) -> None:
        """Only ``DistributedDataParallel`` can leave the exchange out."""
        if not found.models:
            raise UnprobedError("no DistributedDataParallel model was found")
        if found.is_compiled:
            raise UnprobedError("torch.compile would compile the model anew")
        self._models = found.models

    def apply(self) -> None:
        """What ``no_sync`` sets."""
        self._before = [model.require_backward_grad_sync for model in self._models]
        for model in self._models:
            model.require_backward_grad_sync = False

    def undo(self) -> None:
        """As it was found. Raises ``UnprobedError`` where the loop set it meanwhile: then gradients were exchanged."""
        held, self._before = list(zip(self._models, self._before, strict=False)), []
        is_ours = not any(model.require_backward_grad_sync for model, _ in held)
        for model, before in held:
            model.require_backward_grad_sync = before
        if not is_ours:
            raise UnprobedError("the loop sets require_backward_grad_sync itself")


class Bf16Probe:
    """Autocast to bf16 around the whole step."""

    name: ProbeName = "bf16"
    change = "fp32 → bf16 autocast"
    has_control = True
    batch: Callable[[], Any] | None = None
    burst = 1

    def __init__(self) -> None:
        self._device = "cpu"
        self._context: AbstractContextManager[object] | None = None

    def check(self, found: Found, iterator: Any) -> None:
        """Only of a model in fp32 that is not compiled."""
        torch = sys.modules["torch"]
        if found.is_compiled:
            raise UnprobedError("torch.compile would compile the model anew")
        if found.is_scaled:
            raise UnprobedError("the run uses mixed precision already: its gradients are scaled")
        trained = [one for one in parameters(found) if one.requires_grad]
        if any(one.dtype != torch.float32 for one in trained):
            raise UnprobedError("not all weights are fp32")
        if any(issubclass(type(one), torch.nn.BCELoss) for one in found.modules):
            raise UnprobedError("BCELoss does not run under autocast")
        self._device = next((one.device.type for one in trained if one.device.type != "cpu"), "cpu")

    def apply(self) -> None:
        """Without the cache of cast weights, which would outlive the step."""
        torch = sys.modules["torch"]
        self._context = torch.autocast(self._device, dtype=torch.bfloat16, cache_enabled=False)
        self._context.__enter__()

    def undo(self) -> None:
        """Leave autocast."""
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)


class WorkersProbe:
    """A second loader of the same data set with another number of workers; the first one waits meanwhile."""

    name: ProbeName = "workers"
    change = ""
    has_control = False

    def __init__(self, factor: float, cores: float) -> None:
        """``factor`` times the workers there are; ``cores`` are usable."""
        self._factor, self._cores = factor, cores
        self._make: Callable[[], Any] | None = None
        self._iterator: Any = None
        self.batch: Callable[[], Any] | None = self._next
        self.burst = 1

    def check(self, found: Found, iterator: Any) -> None:
        """Of a torch loader over a data set with positions, with samplers that give nothing else."""
        loader = loader_of(found, iterator)
        if loader is None:
            raise UnprobedError("the steps are fed by no torch DataLoader, or nobody holds it any more")
        if not hasattr(type(loader.dataset), "__getitem__") or loader._dataset_kind != 0:
            raise UnprobedError("its data set is iterable: it has no samples to ask for")
        if loader.batch_size is None:
            raise UnprobedError("its batches are not made of a fixed number of samples")
        if type(loader.sampler).__name__ not in _POSITIONS or type(loader.batch_sampler).__name__ != "BatchSampler":
            raise UnprobedError(f"nobody knows the keys of a {type(loader.sampler).__name__}")
        now = loader.num_workers
        wanted = self._wanted(now)
        self.change, self.burst = f"num_workers {now} → {wanted}", wanted
        self._make = lambda: _second(loader, wanted)

    def _wanted(self, now: int) -> int:
        if self._factor < 1:
            if now < 2:
                raise UnprobedError(f"num_workers is {now}: there is no half of it")
            return round(now * self._factor)
        wanted = max(2, round(now * self._factor)) if now else 2
        most = max(2, round(2 * self._cores))
        if wanted > most and now >= most:
            raise UnprobedError(f"num_workers is {now}, and {self._cores:g} cores are usable")
        return min(wanted, most)

    def apply(self) -> None:
        """Start the workers."""
        with unwatched(), warnings.catch_warnings():  # torch warns of more workers than cores
            warnings.simplefilter("ignore")
            self._iterator = None if self._make is None else attempt(self._make)

    def undo(self) -> None:
        """Stop the workers."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()

    def _next(self) -> Any:
        return next(self._iterator)


def _second(loader: Any, workers: int) -> Any:
    """An iterator of the same data set that has no end, draws from no generator of the run's and asks no sampler."""
    torch = sys.modules["torch"]
    length, size = len(loader.dataset), loader.batch_size
    in_order = type(loader.sampler).__name__ == "SequentialSampler"
    return iter(
        torch.utils.data.DataLoader(
            loader.dataset,
            batch_sampler=_Positions(length, size, in_order),
            num_workers=workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout or _TIMEOUT_S,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor or _DEFAULT_PREFETCH,
            generator=torch.Generator(),
        )
    )


class _Positions:
    """Batches of positions without end."""

    def __init__(self, length: int, size: int, in_order: bool) -> None:
        self._length, self._size, self._in_order = length, min(size, length), in_order

    def __iter__(self) -> Iterator[Sequence[int]]:
        chosen, at = random.Random(0), 0  # noqa: S311  which samples is no secret
        while True:
            if self._in_order:
                yield [(at + number) % self._length for number in range(self._size)]
                at += self._size
            else:
                yield chosen.sample(range(self._length), self._size)


def probes_of(name: ProbeName, cores: float) -> list[Probe]:
    """The probes that a name stands for, in their order."""
    if name == "workers":
        return [WorkersProbe(2, cores), WorkersProbe(0.5, cores)]
    kinds: dict[str, Callable[[], Probe]] = {"input": InputProbe, "comm": CommProbe, "bf16": Bf16Probe}
    return [kinds[name]()]
