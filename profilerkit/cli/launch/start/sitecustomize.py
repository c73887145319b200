"""Runs at the start of every Python below ``profilerkit run``, before its program: waits for torch to be imported.

The directory stands first in ``PYTHONPATH``. It leaves ``sys.path`` again, and a ``sitecustomize`` that it hides runs
as if it were not there. Launchers, compile workers and all else that never imports torch pay for this file only.
"""

import atexit
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec

TYPE_CHECKING = False
if TYPE_CHECKING:  # these cost every Python 15 ms
    from types import ModuleType
    from typing import Any


class _TorchFinder:
    """Finds torch as the others do, and has it watched as soon as its import is complete."""

    def __init__(self) -> None:
        self._is_asking = False

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """The spec of ``torch``, with a loader that calls us afterwards."""
        if fullname != "torch" or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            _then_watch(spec.loader, self)
        return spec


def _then_watch(loader: "Any", finder: _TorchFinder) -> None:
    execute = loader.exec_module

    def execute_and_watch(module: "ModuleType") -> None:
        del loader.exec_module
        execute(module)
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        try:
            from profilerkit.cli.launch.watch import watch
        except (ImportError, SyntaxError) as error:  # another Python, or one without what profilerkit needs
            sys.stderr.write(f"profilerkit cannot be imported by {sys.executable}, nothing is recorded here: {error}\n")
        else:
            watch()

    loader.exec_module = execute_and_watch


def _begin() -> None:
    if "PROFILERKIT_RUN" not in os.environ:
        return
    if find_spec("profilerkit") is None:
        sys.stderr.write(f"profilerkit is not installed for {sys.executable}, nothing is recorded here\n")
        return
    sys.meta_path.insert(0, _TorchFinder())
    atexit.register(_tell_at_end)


def _tell_at_end() -> None:
    order = os.environ.get("PROFILERKIT_RUN")
    if order is None:
        return
    import json

    if json.loads(order)["pid"] == os.getpid():
        from profilerkit.cli.launch.at_end import tell

        tell()


def _run_the_hidden_one() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib costs 5 ms in every Python
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]  # noqa: PTH100
    hidden = PathFinder.find_spec("sitecustomize", sys.path)
    if hidden is None or hidden.loader is None:
        return
    module = module_from_spec(hidden)
    sys.modules["sitecustomize"] = module
    hidden.loader.exec_module(module)


_begin()
_run_the_hidden_one()
