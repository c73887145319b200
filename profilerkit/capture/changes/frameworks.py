"""Change arguments of frameworks that train for the user: how often they evaluate, save and log."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from profilerkit.capture.changes.making import Changes
from profilerkit.capture.guard import tried
from profilerkit.capture.patches import is_loaded

#: Class to the modules that have one of this name.
_MODULES = {
    "TrainingArguments": ("transformers.training_args",),
    "Trainer": ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
}


def arguments_of(name: str) -> Callable[[Changes, dict[str, Any]], None]:
    """Return what changes arguments of a class, also of one that is imported later."""

    def apply(changes: Changes, wanted: dict[str, Any]) -> None:
        for module in _MODULES[name]:
            _when_imported(changes, module, lambda found: changes.in_calls(vars(found)[name], wanted))

    return apply


def _when_imported(changes: Changes, name: str, work: Callable[[ModuleType], object]) -> None:
    """Do this with a module: at once where it is there, else when it has been imported."""
    if is_loaded(name):
        work(sys.modules[name])
        return

    class Finder:
        @staticmethod
        def find_spec(fullname: str, _path: object = None, _target: object = None) -> Any:
            if fullname != name:
                return None
            take_out()
            spec = find_spec(name)
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def execute_and_work(module: ModuleType) -> None:
                    execute(module)
                    tried(work, module)

                spec.loader.exec_module = execute_and_work  # type: ignore[method-assign]
            return spec

    def take_out() -> None:
        # Another import that is under way goes through the list that was there.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not Finder]

    sys.meta_path.insert(0, Finder)
    changes.patches.on_remove(take_out)
