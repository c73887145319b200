"""Waits for torch to be imported by a program below ``profilerkit run``, and times what it imports.

A process that never imports torch, such as a launcher or a compile worker, runs this file only.
"""

import atexit
import os
import sys
from _thread import get_ident
from time import perf_counter_ns

TYPE_CHECKING = False
if TYPE_CHECKING:  # these cost every Python 15 ms
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class _Finder:
    """Finds modules as the others do, times what the main thread imports, and has torch watched once it is there.

    It costs 10 µs for each package. A recording that begins takes it out.
    """

    _SHORTEST_NS, _MOST_SPANS = 1_000_000, 1_000

    def __init__(self) -> None:
        self.began_ns = perf_counter_ns()
        #: Of the imports that no other one needs, start and end, ns; shorter ones than ``_SHORTEST_NS`` left out.
        self.spans: list[tuple[int, int]] = []
        self.own_ns: dict[str, int] = {}  #: package to what its modules took, but for what they import of others, ns
        self._inner_ns: list[int] = []  # of each import under way, what those in it took
        self._asked: set[str] = set()
        self._thread = get_ident()
        self._has_seen_torch = False
        self.aside: tuple[int, int] | None = None

    def find_spec(self, fullname: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        """The spec that the others find, with a loader that calls us around its work; ``None`` to have them asked."""
        is_ours = fullname == "torch" or (get_ident() == self._thread and not (self._inner_ns and "." in fullname))
        if not is_ours or fullname in self._asked:
            return None
        self._asked.add(fullname)
        try:
            others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
            spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        finally:
            self._asked.discard(fullname)
        if spec is not None and hasattr(spec.loader, "exec_module") and not isinstance(spec.loader, type):
            self._surround(spec.loader, fullname)
        return spec

    def _surround(self, loader: "Any", fullname: str) -> None:
        execute = loader.exec_module

        def surrounded(module: "ModuleType") -> None:
            loader.__dict__.pop("exec_module", None)
            if get_ident() == self._thread:
                self._timed(execute, module, fullname.partition(".")[0])
            else:
                execute(module)
            if fullname == "torch" and not self._has_seen_torch:
                self._has_seen_torch = True
                self._aside(_watch)

        try:
            loader.exec_module = surrounded
        except AttributeError:  # it has no place for it, and is left as it is
            return

    def _timed(self, execute: "Callable[[ModuleType], None]", module: "ModuleType", name: str) -> None:
        self._inner_ns.append(0)
        start_ns = perf_counter_ns()
        try:
            execute(module)
        finally:
            end_ns = perf_counter_ns()
            self.own_ns[name] = self.own_ns.get(name, 0) + end_ns - start_ns - self._inner_ns.pop()
            if self._inner_ns:
                self._inner_ns[-1] += end_ns - start_ns
            elif end_ns - start_ns >= self._SHORTEST_NS and len(self.spans) < self._MOST_SPANS:
                self.spans.append((start_ns, end_ns))

    def _aside(self, work: "Callable[[_Finder], None]") -> None:
        """Do what is not the program's: neither its imports nor its time are counted."""
        thread, self._thread = self._thread, 0
        start_ns = perf_counter_ns()
        work(self)
        self._thread = thread
        self.aside = (start_ns, perf_counter_ns())
        if self._inner_ns:
            self._inner_ns[-1] += self.aside[1] - start_ns


def _watch(finder: _Finder) -> None:
    try:
        from profilerkit.cli.launch import watch
    except (ImportError, SyntaxError) as error:  # a Python without profilerkit, or without what it needs
        sys.stderr.write(f"profilerkit cannot be imported by {sys.executable}, nothing is recorded here: {error}\n")
    else:
        watch(finder)


def begin() -> None:
    """Begin to wait."""
    sys.meta_path.insert(0, _Finder())
    atexit.register(_tell_at_end)


def _tell_at_end() -> None:
    order = os.environ.get("PROFILERKIT_RUN")
    if order is None:
        return
    import json

    try:
        if json.loads(order)["pid"] != os.getpid():
            return
    except (ValueError, KeyError, TypeError):  # the variable is somebody else's
        return
    try:
        from profilerkit.cli.launch import tell
    except (ImportError, SyntaxError):
        if "torch" not in sys.modules:  # else it has been said
            sys.stderr.write(f"profilerkit cannot be imported by {sys.executable}, nothing was recorded\n")
    else:
        tell()
