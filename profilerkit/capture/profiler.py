"""Record from inside a script: context manager, decorator, ``wrap``, ``step`` and ``phase``."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, ParamSpec, TypeVar

from profilerkit.capture.guard import Guard, announce
from profilerkit.capture.settings import OVERHEAD_BUDGET, Faults, Settings, budget_of, path_of, whole
from profilerkit.errors import ProfilerkitError, UsageError

if TYPE_CHECKING:
    from profilerkit.capture.session import Session
    from profilerkit.model.report import Report

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Loader = TypeVar("_Loader", bound=Iterable[object])

#: Checks whether the body of a function runs after the call has returned.
_RUN_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class Profile:
    """Record one training run; made by ``profile()``.

    Attributes:
        directory: the run directory; ``None`` before the block, and when nothing is recorded.
        report: the report after the block. ``None`` before its end, with ``analyze=False``, on all ranks but the
            first, and when the analysis failed.
    """

    #: Turns the record of a report into what the user holds; set by a row above.
    shown: ClassVar[Callable[["Report"], "Report"]] = staticmethod(lambda report: report)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: Session | None = None
        self._owns_session = True
        self.directory: Path | None = None
        self.report: Report | None = None

    def __copy__(self) -> "Profile":
        """Itself: what holds a recording and is copied, as a model is for averaged weights, names the same one."""
        return self

    def __deepcopy__(self, _copied: object) -> "Profile":
        """Itself."""
        return self

    def __getstate__(self) -> dict[str, object]:
        """What is pickled: where this is recording, a profile that records nothing, for what holds this one."""
        state = dict(vars(self))
        if self._session is not None:
            state |= {"_session": None, "directory": None, "_settings": replace(self._settings, enabled=False)}
        return state

    def __enter__(self) -> "Profile":
        """Start recording. Where that fails, a warning says why and the block runs unrecorded.

        Raises:
            UsageError: this block is open already.
        """
        self._open(until_exit=False)
        return self

    def record_until_exit(self) -> bool:
        """Start recording without a block, until ``__exit__`` is called or the program ends.

        Return ``False`` if it records already. Inside another recording it names the steps and phases of that
        recording and ends nothing. Raises as ``__enter__`` does.
        """
        if self._session is not None:
            return False
        self._open(until_exit=True)
        return True

    def _open(self, *, until_exit: bool) -> None:
        if self._session is not None:
            raise UsageError("this profile block is open already", hint="make another one with profilerkit.profile()")
        if not self._settings.enabled:
            return
        self.report = self.directory = None
        self._session = Guard("profilerkit").call(self._started, until_exit)
        self.directory = self._session.run if self._session is not None else None

    def _started(self, until_exit: bool) -> "Session | None":
        from profilerkit.capture.session import active, start

        found = active() if until_exit else None
        self._owns_session = found is None
        try:
            return found or start(self._settings, until_exit=until_exit)
        except ProfilerkitError as error:
            announce(f"profilerkit records nothing, training goes on: {error.in_one_line}")
            return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop recording, then analyze. Your exception, if any, goes on unchanged.

        After an exception or an exit with a code it does not wait for other ranks. Compressing the trace and making
        the report then take at most 20 seconds together.
        """
        session, self._session = self._session, None
        if session is not None and self._owns_session:
            report = session.close(error)
            self.report = None if report is None else Profile.shown(report)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Record every call of ``function`` into a run directory of its own.

        Raises:
            UsageError: ``function`` is a coroutine function or a generator function: its body runs after the call.
        """
        if any(runs_later(function) for runs_later in _RUN_LATER):
            raise UsageError(
                f"profile cannot decorate {getattr(function, '__qualname__', function)}",
                cause="its body runs after the call has returned",
                hint="use `with profilerkit.profile(...)` inside it",
            )

        @functools.wraps(function)
        def recorded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with Profile(self._settings):
                return function(*args, **kwargs)

        return recorded

    def wrap(self, loader: _Loader) -> _Loader:
        """Return ``loader`` with each wait for a batch timed; each batch is a step unless ``step()`` is called.

        The result has the length and attributes of ``loader`` and can be iterated again.
        """
        return self._session.wrap(loader) if self._session is not None else loader

    def step(self) -> None:
        """End a step here. From the first call on, nothing else ends steps."""
        if self._session is not None:
            self._session.step()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time a block under ``name``: "evaluation", "checkpoint", "logging", or a name of your own."""
        return self._session.phase(name) if self._session is not None else nullcontext()


def profile(
    path: str | os.PathLike[str] | None = None,
    *,
    trace_steps: int = 10,
    warmup_steps: int = 5,
    trace_every: int | None = None,
    max_trace_bytes: int = 1 << 30,
    with_stack: bool = False,
    light: bool = True,
    deep: bool = True,
    nvml: bool = True,
    host: bool = True,
    analyze: bool = True,
    summaries: bool = False,
    enabled: bool = True,
    overhead_budget: float | None = None,
) -> Profile:
    """Record a training run, as a context manager or a decorator; a warning says where an argument is replaced.

    Args:
        path: the run directory; default ``runs/<script name>``. If it holds a run, the next free number is used.
        trace_steps: number of steps traced with ``torch.profiler``.
        warmup_steps: number of steps before the trace; a single rank waits up to 20 more while steps settle.
        trace_every: trace again every this many steps; ``None`` traces once. Slow steps that recur are traced anyway.
        with_stack: trace the names of Python functions too; always on without a loader.
        max_trace_bytes: stop tracing once the traces of a rank would exceed this size.
        light: time every step, input wait, backward pass and optimizer step.
        deep: trace steps with ``torch.profiler``.
        nvml: sample the GPU once per second (read-only queries).
        host: sample the host once per second.
        analyze: write the report at the end of the block.
        summaries: summarise the traces, for ``profilerkit reduce``.
        enabled: ``False`` turns everything off at no cost.
        overhead_budget: largest share of a step to spend; default ``PROFILERKIT_OVERHEAD_BUDGET``, or 0.01.
    """
    faults = Faults()
    settings = Settings(
        path=faults.spare(None, path_of, path),
        trace_steps=faults.spare(10, whole, "trace_steps", trace_steps, 1),
        warmup_steps=faults.spare(5, whole, "warmup_steps", warmup_steps, 0),
        trace_every=None if trace_every is None else faults.spare(None, whole, "trace_every", trace_every, 1),
        max_trace_bytes=faults.spare(1 << 30, whole, "max_trace_bytes", max_trace_bytes, 0),
        with_stack=with_stack,
        light=light,
        deep=deep,
        nvml=nvml,
        host=host,
        analyze=analyze,
        summaries=summaries,
        enabled=enabled,
        overhead_budget=faults.spare(OVERHEAD_BUDGET, budget_of, overhead_budget, os.environ),
    )
    if enabled:
        faults.announce("profilerkit.profile")
    return Profile(settings)
