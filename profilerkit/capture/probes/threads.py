"""Whether the batches of the training may be made by another thread of this process, which a probe cannot hold still.

Such a thread goes on while a probe's steps run. Putting back a random generator that it draws from would give batches
twice, and what it has made meanwhile would be taken for a faster loader.
"""

import sys
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from profilerkit.capture.loader_info import ITERABLE_KIND
from profilerkit.capture.probes.found import UnprobedError

#: What holds its batches already, and iterators of that.
_HELD: list[Iterable[object]] = [[], (), range(0), {}, {}.values(), {}.items(), set(), deque(), "", b""]
_PLAIN = {type(iter(one)) for one in _HELD}
#: Modules of threads that make no batches: they pin those of torch's workers, send to workers, and watch a bar.
_NO_MAKERS = {"torch.utils.data._utils.pin_memory", "multiprocessing.queues", "tqdm._monitor"}
_OWN = "profilerkit-"
#: Modules of generators whose batches are those of torch's iterators.
_OF_TORCH = {"accelerate.data_loader"}
#: Of a thread's name, what is told, and of how many threads.
_LONGEST_NAME, _NAMED = 40, 3


def check_maker(kind: type | None, iterator: Any) -> None:
    """Nothing, for an iterator of this ``kind``, ``None`` where it is not known; ``iterator`` where it is still there.

    A torch iterator with workers, or over samples that are asked for one by one, makes its batches in no thread of this
    process. Of any other one nobody knows, unless there is no thread that could.

    Raises:
        UnprobedError: some thread may make its batches.
    """
    if kind is None or kind in _PLAIN or _is_torch(kind, iterator):
        return
    makers = [thread.name[:_LONGEST_NAME] for thread in threading.enumerate() if _may_make(thread)]
    if makers:
        more = f" and {len(makers) - _NAMED} more" if len(makers) > _NAMED else ""
        alive = f"{', '.join(makers[:_NAMED])}{more} {'are' if len(makers) > 1 else 'is'} alive"
        raise UnprobedError(f"its loader may make batches in a thread of its own: {alive}")


def _is_torch(kind: type, iterator: Any) -> bool:
    torch = sys.modules["torch"]
    if not issubclass(kind, torch.utils.data.dataloader._BaseDataLoaderIter):
        frame = getattr(iterator, "gi_frame", None)
        return frame is not None and frame.f_globals.get("__name__") in _OF_TORCH
    streams = getattr(iterator, "_dataset_kind", 0) == ITERABLE_KIND
    return not streams or getattr(iterator, "_num_workers", 0) > 0


def _may_make(thread: threading.Thread) -> bool:
    """Whether it is none of those that are known; a dummy stands for a thread that was not started in Python.

    The one thread of fsspec serves those who wait for it: it makes what a caller asks for, and nothing ahead.
    """
    if thread in (threading.main_thread(), threading.current_thread()) or thread.name.startswith(_OWN):
        return False
    if thread in getattr(sys.modules.get("fsspec.asyn"), "iothread", ()):
        return False
    modules = {type(thread).__module__, getattr(getattr(thread, "_target", None), "__module__", "")}
    return not isinstance(thread, threading._DummyThread) and not modules & _NO_MAKERS
