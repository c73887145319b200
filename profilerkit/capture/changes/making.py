"""Keep what is changed in a program while it runs: what was applied and where, what was refused, how it is undone."""

import functools
import inspect
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from profilerkit.capture.guard import tried
from profilerkit.capture.patches import UNCOUNTED, Patches, uncounted
from profilerkit.capture.timed_calls import not_compiled

#: File, line, function, and the package whose call the line is; may be empty.
Line = tuple[str, int, str, str]
_OWN, _STANDARD = str(Path(__file__).parents[1]), str(Path(os.__file__).parent)
SETTLED = 3  #: a model, an optimizer and its loaders have been used after so many steps


class Changes:
    """The changes made in this process.

    Attributes:
        patches: replace what is changed; removing them leaves everything as it was.
        applied: setting to the user's lines that made what it changed. Empty for a setting of the whole process.
        refused: setting to the reason.
    """

    def __init__(self) -> None:
        self.patches = Patches()
        self.applied: dict[str, list[Line]] = {}
        self.refused: dict[str, str] = {}
        self._lacks: dict[str, str] = {}
        self._at_step: list[tuple[int, Callable[[], object]]] = []

    def apply(self, work: "Callable[[Changes, dict[str, Any]], None]", wanted: dict[str, tuple[Any, str]]) -> None:
        """Apply settings of one kind: now, or when the program makes what they are about.

        ``wanted`` is setting to value, and to the reason where it turns out to be applied to nothing.
        """
        self._lacks |= {name: lacks for name, (_, lacks) in wanted.items()}
        self.refuse_all(wanted, tried(work, self, {name: value for name, (value, _) in wanted.items()})[1])

    def found(self, name: str, *, once: bool = False) -> None:
        """Note that the setting is applied, by the user's line that is running; ``once`` looks at the first only."""
        if once and name in self.applied:
            return
        lines, line = self.applied.setdefault(name, []), users_line()
        if line is not None and line not in lines:
            lines.append(line)

    def refuse(self, name: str, why: str) -> None:
        """Note why the setting is not applied to something; that counts where it is applied to nothing."""
        self.refused.setdefault(name, why)

    def at_step(self, number: int, work: Callable[[], object]) -> None:
        """Do this once that many steps have ended; with 0 when training begins."""
        self._at_step.append((number, work))

    def stepped(self, steps: int) -> None:
        """That many steps have ended."""
        due = [entry for entry in self._at_step if steps >= entry[0]]
        for entry in due:
            self._at_step.remove(entry)
            tried(entry[1])

    def results(self) -> tuple[dict[str, list[Line]], dict[str, str]]:
        """Return what was applied, and why the other settings were not."""
        refused = {name: self.refused.get(name) or lacks for name, lacks in self._lacks.items()}
        return self.applied, {n: why for n, why in {**self.refused, **refused}.items() if n not in self.applied}

    def attempt(self, name: str, work: "Callable[..., str | None]", *args: Any) -> bool:
        """Whether it was done; refuses where ``work`` returns a reason, or raises."""
        said, why = tried(work, *args)
        self.refuse_all([name], why or said or "")
        return not (why or said)

    def refuse_all(self, values: Iterable[str], why: str) -> None:
        """Refuse these settings, where there is a reason."""
        self.refused |= dict.fromkeys(values if why else (), why)

    def differs(self, name: str, now: object, wanted: object) -> bool:
        """Whether the program has another value than the wanted; refuses where it has that."""
        if now != wanted:
            return True
        self.refuse(name, f"{name} is {wanted} already")
        return False

    def in_calls(
        self,
        owner: Any,
        wanted: dict[str, Any],
        amend: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
        after: Callable[[Any], None] | None = None,
        *,
        name: str = "__init__",
        setting: str = "",
    ) -> None:
        """Change keywords of the calls that make objects of a class, or of another function of it.

        ``amend`` takes the arguments of the call, with defaults, and those that are to be others, which it may alter. A
        function that refuses them is called again as the user wrote it. ``after`` is called with the object. What is
        called otherwise than its keyword has its name in ``setting``.
        """

        def to_change(given: dict[str, Any]) -> dict[str, Any]:
            values = {
                key: value for key, value in wanted.items() if self.differs(setting or key, given.get(key), value)
            }
            if amend is not None:
                amend(given, values)
            return values

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            signature = inspect.signature(original)
            defaults = {key: one.default for key, one in signature.parameters.items() if one.default is not one.empty}

            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                bound, _ = tried(lambda: signature.bind(*args, **kwargs))
                if bound is None or not self.patches.armed:
                    return original(*args, **kwargs)
                if isinstance(bound.arguments.get("params"), Iterator):  # of an optimizer, read by each call
                    bound.arguments["params"] = list(bound.arguments["params"])
                values, why = tried(to_change, defaults | bound.arguments)
                changed = inspect.BoundArguments(signature, OrderedDict(bound.arguments | (values or {})))
                done = None
                if values:
                    done, why = tried(lambda: [original(*changed.args, **changed.kwargs)])
                names = [setting or key for key in wanted if values is None or key in values]
                self.refuse_all(names, why)
                if done is None:
                    done = [original(*bound.args, **bound.kwargs)]
                else:
                    for each in names:
                        self.found(each, once=name != "__init__")
                if after is not None:
                    tried(after, args[0])
                return done[0]

            return uncounted(call) if name == "__init__" else not_compiled(call)

        self.patches.patch(owner, name, make)


def users_line() -> Line | None:
    """Return the innermost line that is the user's own; ``None`` where none is seen."""
    frame: Any = sys._getframe(1)
    package = ""
    while frame is not None:
        file = frame.f_code.co_filename
        _, is_installed, below = file.partition("-packages" + os.sep)
        if not is_installed and not file.startswith(("<", UNCOUNTED, _OWN, _STANDARD)):
            return file, frame.f_lineno, frame.f_code.co_name, package
        package = below.partition(os.sep)[0] if is_installed else package
        frame = frame.f_back
    return None
