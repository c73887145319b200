"""Record garbage collections, compilations of ``torch.compile`` and evaluations."""

import functools
import gc
import re
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, filterfalse
from threading import get_ident
from time import perf_counter_ns
from typing import Any, NamedTuple

from profilerkit.capture.guard import attempt
from profilerkit.capture.patches import Patches, Watch
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.timed_calls import skip_not_compiled
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.writer import Record

_GC, _OTHER_THREAD = int(EventKind.GC), int(EventFlag.OTHER_THREAD)
#: Collections of the youngest generation run hundreds of times per second and take a few microseconds.
_SHORTEST_NS = 50_000
#: Moments that are kept, 25 MB of them, while nobody asks: 25,000 collections.
_MOST_NOTED = 100_000
#: What Python tells of a collection.
_Told = dict[str, int]


class Collection(NamedTuple):
    """One collection: start and duration in ns, the thread it ran on, and the oldest generation it looked at."""

    start_ns: int
    dur_ns: int
    thread: int
    generation: int


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
            if found.dur_ns >= _SHORTEST_NS:
                flags = 0 if found.thread == self._tracker.thread else _OTHER_THREAD
                self._record((_GC, flags, 0, found.start_ns, found.dur_ns, found.generation))

    def close(self) -> None:
        """Record the last ones."""
        self.beat()

    def _ended(self) -> Iterator[Collection]:
        noted = [self._noted.popleft() for _ in range(len(self._noted))]
        for number, now_ns, thread, about in noted:
            if number % 2:  # ``max`` asks for a key of each of its two arguments
                continue
            if about is self._about:
                self._begun_ns = now_ns
                continue
            self._about, begun_ns, self._begun_ns = about, self._begun_ns, None
            if begun_ns is not None:  # else it had begun before it was watched
                yield Collection(begun_ns, now_ns - begun_ns, thread, about["generation"])


_COMPILE, _INFERRED = int(EventKind.COMPILE), int(EventFlag.INFERRED)
_CALLBACK = "torch._dynamo.callback"
#: Characters of a guard that are kept (a choice: torch's own are 20 to 100 long, its comment on the source left out).
_MOST_OF_A_GUARD = 160
#: Before a guard stands what was compiled with it.
_OF_A_COMPILATION = re.compile(r"^\S{0,40}\d/\d{1,9}\S{0,40}: ")


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
