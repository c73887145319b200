"""Change arguments of frameworks that train for the user: how often they evaluate, save and log."""

import functools
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from profilerkit.capture.changes.making import Changes
from profilerkit.capture.guard import tried
from profilerkit.capture.patches import is_loaded, uncounted

_TRAINING_ARGUMENTS = "transformers.training_args"
_TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def training_arguments(changes: Changes, wanted: dict[str, Any]) -> None:
    """Change ``TrainingArguments``, also of a transformers that is imported later."""
    _when_imported(
        changes, _TRAINING_ARGUMENTS, lambda found: _in_fields(changes, vars(found)["TrainingArguments"], wanted)
    )


def trainers(changes: Changes, wanted: dict[str, Any]) -> None:
    """Change the arguments of Lightning's ``Trainer``, also of one that is imported later."""
    for module in _TRAINERS:
        _when_imported(changes, module, lambda found: changes.in_calls(vars(found)["Trainer"], wanted))


def _in_fields(changes: Changes, owner: Any, wanted: dict[str, Any]) -> None:
    """Change fields of a dataclass before it checks them: one that inherits from it has an ``__init__`` of its own."""

    def make(original: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(original)
        def post_init(made: Any) -> None:
            fields, now = vars(made), dict(vars(made))
            is_on = changes.patches.armed
            values = {
                key: value for key, value in wanted.items() if is_on and changes.differs(key, now.get(key), value)
            }
            fields.update(values)
            why = tried(original, made)[1] if values else ""
            changes.refuse_all(values, why)
            if why or not values:
                fields.clear()
                fields.update(now)
                original(made)
                return
            for key in values:
                changes.found(key)

        return uncounted(post_init)

    changes.patches.patch(owner, "__post_init__", make)


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
