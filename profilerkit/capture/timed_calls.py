"""Time calls of functions and methods by a table, and record collections, compilations and evaluations."""

import functools
import gc
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, filterfalse
from threading import get_ident
from time import perf_counter_ns
from typing import Any, NamedTuple

from profilerkit.capture.device_clock import cuda_in_use
from profilerkit.capture.guard import attempt
from profilerkit.capture.patches import Patches, Watch, is_loaded
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.writer import Record

Size = Callable[[tuple[Any, ...]], int]  #: the value of a record from the arguments of a call

_OTHER_THREAD = int(EventFlag.OTHER_THREAD)
_DYNAMO = "torch._dynamo.eval_frame"
_NOT_COMPILED: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


class TimedFunction(NamedTuple):
    """A function to time."""

    module: str  #: that holds it; it is patched once that is loaded, if this version of it has it
    path: str
    name: str
    #: Of a method of a class made by pybind11, what makes the record's value from its arguments.
    size: Size | None = None


class _Here(threading.local):
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
    "gather_single": ("gather_single",),
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


_GC = int(EventKind.GC)
#: Collections of the youngest generation run hundreds of times per second and take a few microseconds.
_SHORTEST_NS = 50_000
_MOST_NOTED = 100_000  #: moments that are kept, 25 MB of them, while nobody asks: 25,000 collections
_Told = dict[str, int]  #: what Python tells of a collection


class CollectionWatch(Watch):
    """Record collections of 50 µs or more, without a line of Python in them.

    Python runs the handler of a signal at the next line of Python that it comes to. What one raises in a callback of
    the collector (a KeyboardInterrupt, the SystemExit of a preempted job) is printed and lost, and the training goes
    on. So the callbacks are made of functions that are written in C, none of which looks for signals: ``max`` calls its
    ``key``, that takes the next moment of an iterator, and ``filterfalse`` hands each moment to ``append``. 1.5 µs of a
    collection.
    """

    name = "collections"

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker) -> None:
        self._record, self._tracker = record, tracker
        self._about: _Told = {}  # the last collection that ended
        self._begun_ns: int | None = None
        # Number, time and thread, and what was told last when one stopped.
        self._noted: deque[tuple[int, int, int, _Told]] = deque(maxlen=_MOST_NOTED)
        told = {"stop": self._about}
        latest: Iterator[_Told] = iter(partial(told.__getitem__, "stop"), None)
        moments = zip(count(), iter(perf_counter_ns, None), iter(get_ident, None), latest, strict=True)
        note = partial(next, filterfalse(self._noted.append, moments))
        # Both are called with "start" or "stop", and what is told of it.
        self._callbacks = (told.__setitem__, partial(max, key=note))

    def install(self, patches: Patches) -> None:
        """Be called by the collector."""
        patches.extend(gc.callbacks, *self._callbacks)

    def beat(self) -> None:
        """Record what has ended since."""
        for found in self._ended():
            if found[4] >= _SHORTEST_NS:
                self._record(found)

    def close(self) -> None:
        """Record the last ones."""
        self.beat()

    def _ended(self) -> Iterator[Record]:
        noted = [self._noted.popleft() for _ in range(len(self._noted))]
        for number, now_ns, thread, about in noted:
            if number % 2:  # ``max`` asks for a key of each of its two arguments
                continue
            if about is self._about:
                self._begun_ns = now_ns
                continue
            self._about, begun_ns, self._begun_ns = about, self._begun_ns, None
            if begun_ns is not None:  # else it had begun before it was watched
                flags = 0 if thread == self._tracker.thread else _OTHER_THREAD
                yield _GC, flags, 0, begun_ns, now_ns - begun_ns, about["generation"]


_COMPILE, _INFERRED = int(EventKind.COMPILE), int(EventFlag.INFERRED)
_CALLBACK = "torch._dynamo.callback"
#: Characters of a guard that are kept (a choice: torch's own are 20 to 100 long, its comment on the source left out).
_MOST_OF_A_GUARD = 160
_OF_A_COMPILATION = re.compile(r"^\S{0,40}\d/\d{1,9}\S{0,40}: ")  #: before a guard stands what was compiled with it


class CompileWatch(Watch):
    """Records one COMPILE per compilation, through the callbacks that torch has for it.

    Torch calls them around the outermost compilation, under a lock of its own. The start of the one that was under way
    when the watch was hung is not known: it counts from then on and is marked inferred. Where a guard's failure made
    torch compile again, the record is named for that guard as well, as torch keeps it.
    """

    name = "compiles"
    needs = (_CALLBACK,)
    unseen = "torch.compile compiled nothing"

    def __init__(self, record: Callable[[Record], None], name_id: Callable[[str], int]) -> None:
        self._record = record
        self._name_id = name_id
        self._start_ns = 0
        self._flags = _INFERRED
        self._failed: dict[Any, int] = {}  # guards of each code so far
        self._patches: Patches | None = None

    def install(self, patches: Patches) -> None:
        """Have torch say when it compiles, and not compile what was hung into it before."""
        skip_not_compiled()
        self._start_ns = perf_counter_ns()
        attempt(self._guard)  # what failed before the watch is of no compilation that it sees
        self._patches = patches
        self._ask_for_calls(patches)

    def _ask_for_calls(self, patches: Patches) -> None:
        handler = sys.modules[_CALLBACK].callback_handler
        patches.extend(handler.start_callbacks, self._started)
        patches.extend(handler.end_callbacks, self._ended)

    # Older versions of torch call both without arguments.
    def _started(self, *_args: Any) -> None:
        self._start_ns = perf_counter_ns()
        self._flags = 0

    def _ended(self, *args: Any) -> None:
        now_ns, start_ns = perf_counter_ns(), self._start_ns
        number = attempt(lambda: self._name_id(f"{args[0].compile_id} {attempt(self._guard) or ''}".strip())) or 0
        self._record((_COMPILE, self._flags, number, start_ns, now_ns - start_ns, 0))
        self.seen = True

    def _guard(self) -> str:
        """The first guard that failed since the compilation before, on one line; empty where none did."""
        failures = sys.modules["torch._dynamo.utils"].guard_failures
        before, self._failed = self._failed, {code: len(found) for code, found in failures.items()}
        new = (found[before.get(code, 0) :] for code, found in failures.items())
        text = str(next((found[0] for found in new if found), ""))
        return " ".join(_OF_A_COMPILATION.sub("", text.partition("#")[0]).split())[:_MOST_OF_A_GUARD]

    def beat(self) -> None:
        """Ask again where ``torch._dynamo.reset()`` has emptied torch's lists."""
        if self._patches is not None:
            self._patches.apply(self._ask_for_calls)


_EVALUATION = int(EventKind.EVALUATION)
_MODULE = "torch.nn.modules.module"
#: Modules that are remembered until the next optimizer step (a choice): a model, its average, a few metrics.
_MOST_MODULES = 8


class EvaluationWatch(Watch):
    """Records one EVALUATION at the ``eval()`` of a model that trains again by the next optimizer step.

    What is still in evaluation mode then, such as a teacher or frozen layers, was not evaluated. ``Module.train`` is
    left alone: it calls itself for each part of a model, and some loops call it in every step.
    """

    name = "evaluations"
    needs = ("torch", _MODULE)
    unseen = "no model went to evaluation mode and back to training"

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker) -> None:
        self._record = record
        self._tracker = tracker
        self._left: list[tuple[weakref.ref[Any], int]] = []  # those in evaluation mode, and since when

    def install(self, patches: Patches) -> None:
        """Hear of ``eval()``."""
        patches.patch(sys.modules[_MODULE].Module, "eval", lambda original: self._evaluated(patches, original))

    def _evaluated(self, patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = sys.modules["torch"].compiler.is_compiling

        def evaluated(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # a constant while torch.compile traces, which sees the original alone then
                return original(module, *args, **kwargs)
            start_ns = perf_counter_ns()
            found = original(module, *args, **kwargs)
            if patches.armed and get_ident() == self._tracker.thread and len(self._left) < _MOST_MODULES:
                left = attempt(weakref.ref, module)
                self._left += [] if left is None else [(left, start_ns)]
                self._tracker.on_trained = self._trained
                self._tracker.fast_thread = 0  # the next optimizer step is to be asked
            return found

        return functools.update_wrapper(evaluated, original)

    def _trained(self) -> None:
        """Record when the first of those that train again was put into evaluation mode."""
        left, self._left = self._left, []
        start_ns = next((start_ns for module, start_ns in left if _trains(module())), None)
        if start_ns is not None:
            self._record((_EVALUATION, 0, 0, start_ns, 0, 0))
            self.seen = True


def _trains(module: Any) -> bool:
    """Whether a module is in training mode; some have no such attribute, and that of others may raise."""
    return attempt(getattr, module, "training", None) is True
