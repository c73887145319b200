"""What torch's loaders and their iterators say of themselves, and what a recording notes in them."""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from profilerkit.capture.guard import asked

#: The attribute of a torch iterator that holds its ``Claim``.
CLAIM = "_profilerkit_claim"
#: Whose samplers draw nothing when they are asked for their length.
_SAMPLERS = ("torch", "torchdata", "accelerate")
#: ``torch.utils.data._DatasetKind.Iterable``
ITERABLE_KIND = 1


class Source:
    """Stands for a loader."""


def reference(source: object) -> Callable[[], object]:
    """What gives ``source`` while it is there: the next one may get its place in memory."""
    try:
        return weakref.ref(source)
    except TypeError:
        return lambda: source


class Claim(NamedTuple):
    """What an iterator whose fetches mark steps carries: whose timer, of which loader, of how many batches."""

    timer: weakref.ref[Any]
    source: object
    length: int


def sampler_of(iterator: Any) -> object:
    """What the iterators of one torch loader share."""
    return getattr(iterator, "_index_sampler", iterator)


def length(source: object) -> int:
    """Batches in one iteration of ``source``; -1 when that is not known for sure.

    ``len()`` of a DataLoader over an iterable dataset is never called: torch remembers it and warns about mismatches.
    """
    known = asked(_asked_length, source)
    return -1 if known is None else known


def _asked_length(source: object) -> int | None:
    if isinstance(source, (list, tuple, range)):
        return len(source)
    sampler = getattr(source, "_index_sampler", None)
    if sampler is None or getattr(source, "_dataset_kind", 0) == ITERABLE_KIND or not _only_counts(sampler):
        return None
    return len(sampler)


def _only_counts(sampler: object) -> bool:
    """Whether the ``len()`` of a sampler is known to draw nothing: one of the user's may use up its random numbers."""
    while sampler is not None:
        if type(sampler).__module__.partition(".")[0] not in _SAMPLERS:
            return False
        within = vars(sampler)
        sampler = within.get("batch_sampler", within.get("sampler"))
    return True
