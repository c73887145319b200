"""Change how a program loads and copies its batches."""

import copy
import functools
import gc
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from profilerkit.capture.changes.making import Changes
from profilerkit.capture.guard import tried
from profilerkit.capture.patches import uncounted
from profilerkit.capture.timed_calls import not_compiled

_NOT_INTO = (type, ModuleType, FunctionType)  #: what leads from one object to all others


def loaders(changes: Changes, wanted: dict[str, Any]) -> None:
    """Change the arguments of ``DataLoader``."""
    loader = sys.modules["torch.utils.data"].DataLoader
    changes.in_calls(loader, wanted, functools.partial(_loader_arguments, changes))


def _loader_arguments(changes: Changes, given: dict[str, Any], values: dict[str, Any]) -> None:
    """Change one call of ``DataLoader`` as far as it can be."""
    torch, now = sys.modules["torch"], given["num_workers"]
    if values.get("num_workers") and not now and (why := _needs_main_process(given.get("dataset"))):
        changes.refuse("num_workers", why)
        del values["num_workers"]
    workers = values.get("num_workers", now)
    if not workers:
        for name in ("persistent_workers", "prefetch_factor"):
            if values.pop(name, None):
                changes.refuse(name, "the loader has no workers")
    if values.get("pin_memory") and not getattr(torch, "accelerator", torch.cuda).is_available():
        changes.refuse("pin_memory", "there is no device to copy to")
        del values["pin_memory"]
    if now and not workers:
        values |= {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None}


def _needs_main_process(dataset: Any) -> str:
    """Why workers cannot load this; empty where they can."""
    torch = sys.modules["torch"]
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return "each worker would read all of an IterableDataset, unless it takes a part of its own"
    level, seen = [dataset], 0
    while level and seen < 1000:
        seen += len(level)
        if any(issubclass(type(one), torch.Tensor) and one.device.type != "cpu" for one in level):
            return "the dataset holds tensors of the device, which a worker cannot use"
        into = (one for one in level if not issubclass(type(one), (*_NOT_INTO, torch.Tensor)))
        level = [held for one in into for held in gc.get_referents(one)[:100]][:1000]
    return ""


def _again(batch: Any) -> Any:
    """The batch in containers of its own, from which a loop may take things out; tensors are the same."""
    if issubclass(type(batch), sys.modules["torch"].Tensor):
        return batch.detach()
    if type(batch) in (list, tuple):
        return type(batch)(map(_again, batch))
    if type(batch) is dict:
        return {key: _again(value) for key, value in batch.items()}
    inner = getattr(batch, "data", None)
    if type(inner) is dict:  # a UserDict, as the batches of transformers are
        made = object.__new__(type(batch))
        made.__dict__ |= {**vars(batch), "data": _again(inner)}
        return made
    return batch


def ceiling(changes: Changes, _wanted: dict[str, Any]) -> None:
    """Give the first batch of each loader again and again, as often as it has batches."""
    data = sys.modules["torch.utils.data.dataloader"]
    batches: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by the sampler of the loader

    def as_first(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_data(iterator: Any) -> Any:
            sampler = iterator._index_sampler
            count, _ = tried(len, sampler)
            if not changes.patches.armed or count is None:
                return original(iterator)
            if sampler not in batches:
                batches[sampler] = original(iterator)
                changes.found("ceiling")
            elif iterator._num_yielded >= count:
                raise StopIteration
            return _again(batches[sampler])

        return uncounted(next_data)

    def without_workers(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def get_iterator(loader: Any) -> Any:
            if not changes.patches.armed or loader._index_sampler not in batches:
                return original(loader)
            alone = copy.copy(loader)
            vars(alone).update(num_workers=0, timeout=0)
            return data._SingleProcessDataLoaderIter(alone)

        return uncounted(get_iterator)

    for kind in (data._SingleProcessDataLoaderIter, data._MultiProcessingDataLoaderIter):
        changes.patches.patch(kind, "_next_data", as_first)
    changes.patches.patch(data.DataLoader, "_get_iterator", without_workers)


def non_blocking(changes: Changes, wanted: dict[str, Any]) -> None:
    """Let copies to a device not block the host; those from it stay as they are."""
    torch, value = sys.modules["torch"], wanted["non_blocking"]

    def make(name: str) -> None:
        original = getattr(torch.Tensor, name)

        def copied(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            target = args[0] if args else kwargs.get("device", "cuda" if name == "cuda" else None)
            is_copy = isinstance(target, (str, int, torch.device)) and torch.device(target).type != "cpu"
            if changes.patches.armed and len(args) < 2 and is_copy and tensor.device.type == "cpu":
                kwargs["non_blocking"] = value
                changes.found("non_blocking", once=True)
            return original(tensor, *args, **kwargs)

        ours = not_compiled(functools.update_wrapper(copied, original))
        if name in vars(torch.Tensor):
            changes.patches.patch(torch.Tensor, name, lambda _original: ours)
        else:  # a class above has it
            setattr(torch.Tensor, name, ours)
            changes.patches.on_remove(lambda: delattr(torch.Tensor, name))

    make("to")
    make("cuda")
