"""Ask loaders and batches what they are: settings, lengths, padding; and note in iterators that they mark steps."""

import sys
import weakref
from collections import Counter, UserDict
from collections.abc import Callable
from itertools import islice
from time import perf_counter_ns
from typing import Any, NamedTuple

from profilerkit.capture.environment import whole
from profilerkit.capture.guard import attempt
from profilerkit.model.run import Loader
from profilerkit.rundir.layout import EventKind, padding_value
from profilerkit.rundir.writer import Record

CLAIM = "_profilerkit_claim"  #: the attribute of a torch iterator that holds its ``Claim``
_SAMPLERS = ("torch", "torchdata", "accelerate")  #: whose samplers draw nothing when they are asked for their length
_ITERABLE_KIND = 1  #: ``torch.utils.data._DatasetKind.Iterable``


class Source:
    """Stands for a loader."""


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
    known = attempt(_asked_length, source)
    return -1 if known is None else known


def _asked_length(source: object) -> int | None:
    if isinstance(source, (list, tuple, range)):
        return len(source)
    sampler = getattr(source, "_index_sampler", None)
    if sampler is None or getattr(source, "_dataset_kind", 0) == _ITERABLE_KIND or not _only_counts(sampler):
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


#: What makes iterators of these types (torch 2.13, torchdata 0.11).
_LOADER_OF = {
    "_SingleProcessDataLoaderIter": "DataLoader",
    "_MultiProcessingDataLoaderIter": "DataLoader",
    "_StatefulSingleProcessDataLoaderIter": "StatefulDataLoader",
    "_StatefulMultiProcessingDataLoaderIter": "StatefulDataLoader",
}
#: By torch's number for the kind of a loader's dataset: nothing is known of other loaders.
_IS_ITERABLE: dict[int | None, bool] = {0: False, _ITERABLE_KIND: True}


def loader_settings(loader: Any) -> Loader:
    """Settings of the loader that feeds the steps, from itself or from its iterator, which keeps what it was told.

    The length of a stream is not asked for: nobody else does, and it may be found out by reading it.
    """

    def said(name: str) -> Any:
        own = attempt(getattr, loader, name, None)
        return attempt(getattr, loader, f"_{name}", None) if own is None else own

    is_iterable = _IS_ITERABLE.get(whole(said("_dataset_kind")))
    named = type(loader).__name__
    return Loader(
        kind=_LOADER_OF.get(named, named),
        num_workers=whole(said("num_workers")),
        batch_size=whole(said("batch_size")) or whole(attempt(getattr, said("_index_sampler"), "batch_size", None)),
        pin_memory=_flag(said("pin_memory")),
        prefetch_factor=whole(said("prefetch_factor")),
        persistent_workers=_flag(said("persistent_workers")),
        dataset_len=None if is_iterable else attempt(len, said("dataset")),
        is_iterable=is_iterable,
    )


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


_PADDING = int(EventKind.PADDING)
#: A look is followed by so many times what it took, so that looks take a thousandth; and by 1 s once there were a few.
_REST, _SECOND_NS, _SOON = 1_000, 1_000_000_000, 8
#: Parts of a batch that are looked into, and most tokens, 1 ms of CPU time on a two-core machine (choices).
_MOST_PARTS, _MOST_TOKENS = 32, 1 << 16
#: Shorter rows are no sequences of tokens, and values in a narrower range no numbers of tokens but labels or masks.
_SHORTEST, _NARROWEST = 8, 16
_TOKENS = ("torch.int64", "torch.int32")  #: types of tokens
#: What fills rows up stands hardly anywhere else in them (a choice: where it ends texts as well, it does).
_ELSEWHERE_RATIO = 0.02


class PaddingLooks:
    """Looks at batches now and then, on the thread that fetches them."""

    __slots__ = ("_due_ns", "_looks", "_record")

    def __init__(self, record: Callable[[Record], None]) -> None:
        self._record = record
        self._due_ns = self._looks = 0

    def look(self, batch: object) -> None:
        """Record the padding of a batch, if it is time for that and the batch holds sequences of tokens."""
        start_ns = perf_counter_ns()
        if start_ns < self._due_ns:
            return
        found = attempt(_padding, batch)
        took_ns = perf_counter_ns() - start_ns
        self._looks += 1
        self._due_ns = start_ns + max(_REST * took_ns, _SECOND_NS if self._looks > _SOON else 0)
        if found is not None:
            tokens, padded, beyond = found
            self._record((_PADDING, 0, beyond, start_ns, took_ns, padding_value(tokens, padded)))


def _padding(batch: object) -> tuple[int, int, int] | None:
    """Tokens, those of them that are padding, and those beyond the longest row; ``None`` without rows of tokens."""
    arrays = [rows[: _MOST_TOKENS // rows.shape[1]] for rows in _rows(batch)]
    # Labels fill up where nothing is asked as well, with a negative number: no token has one.
    rows = max((rows for rows in arrays if int(rows.min()) >= 0), key=lambda rows: int(rows.size), default=None)
    if rows is None or min(max(rows.shape) - _SHORTEST, int(rows.max() - rows.min()) - _NARROWEST) < 0:
        return None
    # Rows of a batch, or its columns; filled up behind, as most are, or before.
    sides = (rows, rows[:, ::-1], rows.T, rows.T[:, ::-1])
    found = [counted for side in sides if (counted := filled_up(side)) is not None]
    return max(found, key=lambda counted: counted[1], default=(int(rows.size), 0, 0))


def _rows(batch: object) -> list[Any]:
    """Arrays of the tensors on the host that may hold rows of tokens; reading one of a device would wait for it."""
    found, todo = [], [batch]
    for part in todo:  # which grows meanwhile
        item: Any = part.data if isinstance(part, UserDict) else part  # tokenizers give one
        if len(todo) > _MOST_PARTS:
            break
        # What a kind of the user's own does to give its parts is not asked for.
        if isinstance(item, dict):
            todo.extend(islice(dict.values(item), _MOST_PARTS))
        elif isinstance(item, list):
            todo.extend(list.__getitem__(item, slice(_MOST_PARTS)))
        elif isinstance(item, tuple):
            todo.extend(tuple.__getitem__(item, slice(_MOST_PARTS)))
        elif type(item).__name__ == "Tensor" and _may_hold_tokens(item):
            # The same memory, and no operator that a trace would show. After numpy() nobody could resize the tensor.
            found.append(sys.modules["numpy"].from_dlpack(item))
    return found


def _may_hold_tokens(tensor: Any) -> bool:
    is_plain = str(tensor.layout) == "torch.strided" and tensor.device.type == "cpu"
    is_short = tensor.dim() == 2 and min(tensor.shape) > 1 and tensor.shape[1] <= _MOST_TOKENS // 2
    return is_plain and is_short and str(tensor.dtype) in _TOKENS


def filled_up(rows: Any) -> tuple[int, int, int] | None:
    """Tokens, padding, and tokens beyond the longest row, of ``(rows, length)`` integers; ``None`` where none fills up.

    >>> import numpy as np
    >>> rows = np.array([[*range(90, 98), 0, 0, 0, 0], [*range(40, 44), 0, 0, 0, 0, 0, 0, 0, 0]])
    >>> filled_up(rows)
    (24, 12, 8)
    >>> filled_up(rows[:, :7]), filled_up(np.minimum(rows, 1))
    (None, None)
    """
    count, length = rows.shape
    if length < _SHORTEST or int(rows.max()) - int(rows.min()) < _NARROWEST:
        return None
    filling, times = Counter(rows[:, -1].tolist()).most_common(1)[0]
    if times < 2:
        return None
    other = rows != filling
    lengths = (length - other[:, ::-1].argmax(axis=1)) * other.any(axis=1)
    kept = int(lengths.sum())
    if kept - int(other.sum()) > _ELSEWHERE_RATIO * kept:
        return None
    return count * length, count * length - kept, count * (length - int(lengths.max()))
