"""Time calls of functions and methods by a table: saves, collectives and synchronisations.

Of nested calls the outermost is timed, and ``torch.compile`` never looks inside a replacement.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import Any, NamedTuple

from profilerkit.capture.cuda import cuda_in_use
from profilerkit.capture.guard import attempt
from profilerkit.capture.patches import Patches, Watch, is_loaded
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.writer import Record

#: The value of a record from the arguments of a call.
Size = Callable[[tuple[Any, ...]], int]

_OTHER_THREAD = int(EventFlag.OTHER_THREAD)
_DYNAMO = "torch._dynamo.eval_frame"
_NOT_COMPILED: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


class TimedFunction(NamedTuple):
    """A function to time.

    Attributes:
        module: that holds it; it is patched once that is loaded, if this version of it has it.
        path: of the attribute, as ``save`` or ``Stream.synchronize``.
        name: under which its calls are recorded.
        size: of a method of a class made by pybind11, what makes the record's value from its arguments.
    """

    module: str
    path: str
    name: str
    size: Size | None = None


class _Here(threading.local):
    """Whether this thread is inside a call that is being timed."""

    inside = False


class CallWatch(Watch):
    """Replace the functions of one kind; each call leaves one record with the host's time in it."""

    kind: EventKind
    functions: Sequence[TimedFunction]

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker, name_id: Callable[[str], int]) -> None:
        self._kind = int(self.kind)
        self._left = list(self.functions)
        self._record, self._tracker, self._name_id = record, tracker, name_id
        self._here = _Here()
        self._timed: dict[int, Callable[..., Any]] = {}
        self._patches: Patches | None = None

    def install(self, patches: Patches) -> None:
        """Patch what is loaded by now."""
        for below in (attempt, message_bytes, _side_bytes):  # what a replacement calls is not traced either
            not_compiled(below)
        self._patches = patches
        loaded = [function for function in self._left if is_loaded(function.module)]
        self._left = [function for function in self._left if function not in loaded]
        for function in loaded:
            owner_name, _, attribute = function.path.rpartition(".")
            module: Any = sys.modules[function.module]
            owner = getattr(module, owner_name, None) if owner_name else module
            if attribute in getattr(owner, "__dict__", ()):
                patches.patch(owner, attribute, functools.partial(self._replaced, patches, function))

    def beat(self) -> None:
        """Patch what has been loaded since."""
        if self._patches is not None and any(is_loaded(function.module) for function in self._left):
            self._patches.apply(self.install)

    def _replaced(self, patches: Patches, function: TimedFunction, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same replacement wherever the same function is found: it is pickled by its name."""
        if id(original) not in self._timed:
            replace = self.function if function.size is None else functools.partial(self.method, size=function.size)
            self._timed[id(original)] = replace(patches, original, function.name)
        return self._timed[id(original)]

    def function(self, patches: Patches, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a replacement for ``original``, whose calls are recorded as ``name``, with the value 0."""
        number, kind, record, tracker, here = self._name_id(name), self._kind, self._record, self._tracker, self._here

        def timed(*args: Any, **kwargs: Any) -> Any:
            if here.inside or not patches.armed:
                return original(*args, **kwargs)
            here.inside = True
            start_ns = perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                duration_ns = perf_counter_ns() - start_ns
                here.inside = False
                flags = 0 if get_ident() == tracker.thread else _OTHER_THREAD
                record((kind, flags, number, start_ns, duration_ns, 0))
                self.seen = True

        return not_compiled(functools.update_wrapper(timed, original))

    def method(self, patches: Patches, original: Callable[..., Any], name: str, size: Size) -> Callable[..., Any]:
        """``function`` for a method of a class made by pybind11; ``size`` makes the value from its arguments, else -1.

        Where a class of the user's inherits the method, pybind11 takes any Python function for an override and calls
        it from C++, which would never end: unless the calling code has the method's name and takes ``self`` first.
        """
        number, kind, record, tracker, here = self._name_id(name), self._kind, self._record, self._tracker, self._here

        def timed(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if here.inside or not patches.armed:
                return original(self_, *args, **kwargs)
            here.inside = True
            start_ns = perf_counter_ns()
            try:
                return original(self_, *args, **kwargs)
            finally:
                duration_ns = perf_counter_ns() - start_ns
                here.inside = False
                value = attempt(size, args)
                flags = 0 if get_ident() == tracker.thread else _OTHER_THREAD
                record((kind, flags, number, start_ns, duration_ns, value if type(value) is int else -1))
                self.seen = True

        timed.__code__ = timed.__code__.replace(co_name=original.__name__)
        return not_compiled(functools.update_wrapper(timed, original))


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, which ``torch.compile`` calls and never traces: a graph breaks where it would without it."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # what torch._dynamo.disable() sets
    _NOT_COMPILED.add(function)
    _skip(function)
    return function


def skip_not_compiled() -> None:
    """Inform a dynamo that was loaded meanwhile: it would compile the frame of a function that it did not call."""
    for function in list(_NOT_COMPILED):
        _skip(function)


def _skip(function: Callable[..., Any]) -> None:
    if is_loaded(_DYNAMO):
        sys.modules[_DYNAMO].skip_code(function.__code__)


def message_bytes(sides: tuple[Any, ...]) -> int:
    """Return the bytes of the larger of a collective's two sides; -1 where there is none.

    The tensors come first, in lists or lists of lists; a collective in place has one side.
    """
    return max(map(_side_bytes, sides[:2]), default=-1)


def _side_bytes(side: Any) -> int:
    """Return the bytes of a tensor or of all in a list; -1 for anything else."""
    if isinstance(side, list):
        total = 0
        for item in side:
            total += _side_bytes(item)
        return total
    return getattr(side, "nbytes", -1)


_DCP = "torch.distributed.checkpoint"
#: A function stands in the module that defines it and in the package that passes it on. Frameworks import ``save_file``
#: by name before a block starts; ``serialize_file``, which it finds in its module, is seen all the same.
_SAVES = (
    TimedFunction("torch", "save", "torch.save"),
    TimedFunction("torch.serialization", "save", "torch.save"),
    TimedFunction("safetensors.torch", "save_file", "safetensors.torch.save_file"),
    TimedFunction("safetensors.torch", "serialize_file", "safetensors.torch.save_file"),
    *(
        TimedFunction(f"{_DCP}{module}", name, f"{_DCP}.{name}")
        for module in ("", ".state_dict_saver")
        for name in ("save", "async_save")
    ),
)
#: Function of ``torch.distributed`` to the methods of ``ProcessGroup`` that it calls, in this and in older releases.
_METHODS = {
    "all_reduce": ("allreduce",),
    "all_reduce_coalesced": ("allreduce_coalesced",),
    "reduce": ("reduce",),
    "broadcast": ("broadcast",),
    "all_gather": ("allgather",),
    "all_gather_coalesced": ("allgather_coalesced",),
    "all_gather_single": ("all_gather_single", "all_gather_single_coalesced"),
    "all_gather_into_tensor": ("_allgather_base", "allgather_into_tensor_coalesced"),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "reduce_scatter": ("reduce_scatter",),
    "reduce_scatter_single": ("reduce_scatter_single", "reduce_scatter_single_coalesced"),
    "reduce_scatter_tensor": ("_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    "all_to_all_single": ("all_to_all_single", "alltoall_base"),
    "all_to_all": ("alltoall",),
    "send": ("send",),
    "recv": ("recv", "recv_anysource"),
    "barrier": ("barrier",),
    "monitored_barrier": ("monitored_barrier",),
}
_C10D = "torch.distributed.distributed_c10d"
_COLLECTIVES = (
    *(
        TimedFunction(_C10D, f"ProcessGroup.{method}", name, message_bytes)
        for name, methods in _METHODS.items()
        for method in methods
    ),
    TimedFunction(_C10D, "Work.wait", "wait", message_bytes),
)
_SYNCS = (
    TimedFunction("torch._C", "_cuda_synchronize", "torch.cuda.synchronize"),
    TimedFunction("torch._C", "_accelerator_synchronizeDevice", "torch.accelerator.synchronize"),
    TimedFunction("torch.cuda", "Stream.synchronize", "torch.cuda.Stream.synchronize"),
    TimedFunction("torch.cuda", "Event.synchronize", "torch.cuda.Event.synchronize"),
)
#: Replacing ``torch.Tensor.item`` or ``.tolist`` adds graph breaks to compiled code, and ``__torch_function__`` of a
#: tensor's subclass is handed the replacement instead of the method it knows (torch 2.13).
_METHODS_ARE_LEFT = "methods of a tensor cannot be watched without changing compiled code: see the traced window"


class SaveWatch(CallWatch):
    """Record one SAVE per checkpoint written; of ``async_save`` the part that keeps its caller waiting."""

    name = "saves"
    needs = ("torch", "torch.serialization")
    unseen = "no save was seen; a save function imported by name before the block cannot be watched"
    kind, functions = EventKind.SAVE, _SAVES


class CollectiveWatch(CallWatch):
    """Record one COLLECTIVE per call from Python, of the user's code or FSDP, and one per wait for it.

    What is patched are the methods of ``ProcessGroup`` below the functions of ``torch.distributed``: ``torch.compile``
    knows those functions by identity and would break the graph at a replacement (torch 2.13), and a function that was
    imported by name is seen too. DDP and functional collectives go from C++ to the process group, past all of this.
    """

    name = "collectives"
    needs = (_C10D,)
    unseen = "no collective was called from Python; DDP's and compiled ones never are"
    kind, functions = EventKind.COLLECTIVE, _COLLECTIVES


class SyncWatch(CallWatch):
    """Record one SYNC per call of what waits for the device, from when CUDA is in use.

    ``torch.cuda.synchronize`` and ``torch.accelerator.synchronize`` are seen one call below, where ``torch.compile``,
    which knows them by identity, does not look. Calls of a tensor's methods are left to the deep window.
    """

    name = "syncs"
    needs = ("torch", "torch.cuda")
    not_ready = "CUDA is not in use"
    unseen = f"no synchronize() was called; {_METHODS_ARE_LEFT}"
    kind, functions = EventKind.SYNC, _SYNCS

    def is_ready(self) -> bool:
        """Return whether CUDA is in use."""
        return cuda_in_use()


class CopyWatch(Watch):
    """Watch nothing: only a tensor's methods make copies to the device."""

    name = "copies"
    unseen = _METHODS_ARE_LEFT
