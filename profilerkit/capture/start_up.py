"""Notes what a program does before its recording: what it imports, and builds, as far as that costs next to nothing."""

import functools
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from profilerkit.capture.patches import Patches, uncounted
from profilerkit.rundir.start_up import StartUp

#: Packages that are named: a few hold most of what imports take (a choice).
_NAMED = 5


class Imports(Protocol):
    """What was there before the program, and timed its imports."""

    began_ns: int
    spans: list[tuple[int, int]]
    own_ns: dict[str, int]
    aside: tuple[int, int] | None


class StartUpWatch:
    """Notes when parameters are registered, the first loader is made and CUDA is initialised, until ``end``."""

    def __init__(self, imports: Imports) -> None:
        self._imports = imports
        self._patches = Patches()
        self._model: tuple[int, int] | None = None
        self._loader_ns: int | None = None
        self._device: tuple[int, int] | None = None

    def begin(self) -> None:
        """Hook it into torch, which is loaded."""
        self._patches.apply(self._install)

    def _install(self, patches: Patches) -> None:
        module = sys.modules["torch.nn.modules.module"]
        patches.on_remove(module.register_module_parameter_registration_hook(self._registered).remove)
        self._time(sys.modules["torch.utils.data.dataloader"].DataLoader, "__init__", self._makes_loader)
        self._time(sys.modules["torch"]._C, "_cuda_init", self._initialised)

    def end(self) -> StartUp:
        """Remove it, and return what was noted."""
        self._patches.remove()
        finders: list[Any] = sys.meta_path
        if self._imports in finders:
            finders.remove(self._imports)
        largest = sorted(self._imports.own_ns.items(), key=lambda item: -item[1])[:_NAMED]
        return StartUp(
            python_end_ns=self._imports.began_ns,
            imports=tuple(self._imports.spans),
            packages=dict(largest),
            model=self._model,
            loader_ns=self._loader_ns,
            device=self._device,
            own=self._imports.aside,
        )

    def _registered(self, _module: object, _name: object, _parameter: object) -> None:
        now_ns = perf_counter_ns()
        self._model = (self._model[0] if self._model else now_ns, now_ns)

    def _makes_loader(self, start_ns: int, _end_ns: int) -> None:
        self._loader_ns = self._loader_ns or start_ns

    def _initialised(self, start_ns: int, end_ns: int) -> None:
        self._device = self._device or (start_ns, end_ns)

    def _time(self, owner: Any, name: str, note: Callable[[int, int], None]) -> None:
        """Have calls of ``owner.name`` noted; a torch without it is left alone."""

        def timed(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                start_ns = perf_counter_ns()
                try:
                    return original(*args, **kwargs)
                finally:
                    note(start_ns, perf_counter_ns())

            return uncounted(call)

        if name in vars(owner):
            self._patches.patch(owner, name, timed)


class _State:
    """What is noted in this process, and what was by the first recording."""

    watch: StartUpWatch | None = None
    noted: StartUp | None = None


def note(imports: Imports) -> None:
    """Note what happens from here to the first recording."""
    _State.watch = StartUpWatch(imports)
    _State.watch.begin()


def noted() -> StartUp | None:
    """Return what happened before the first recording, which begins; ``None`` where nobody was there before."""
    watch, _State.watch = _State.watch, None
    if watch is not None:
        _State.noted = watch.end()
    return _State.noted
